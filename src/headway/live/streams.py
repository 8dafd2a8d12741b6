"""The client streams of one front: what the FrontNode delivers waits here until the gateway takes it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from headway.core.decisions import Decision
from headway.core.effects import Admitted, Deliver, End, Record, Show
from headway.core.errors import InvariantError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId

StreamItem = Deliver | Show | Admitted | End


class Stream:
    """One request's answer. Its size is bounded by the request's lease on `gateway/stream_bytes`."""

    def __init__(self) -> None:
        self._ready: deque[StreamItem] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[Deliver], bool] | None = None
        self._failure: Exception | None = None

    def listen(self, take: Callable[[Deliver], bool]) -> None:
        """Offer tokens to `take` while the reader waits for them: no task is woken for what it takes (True)."""
        self._take = take

    def put(self, item: StreamItem) -> None:
        """Add an item; wakes the reader, unless its listener takes the item."""
        waiter, take = self._waiter, self._take
        is_awaited = waiter is not None and not waiter.done()
        if is_awaited and take is not None and type(item) is Deliver:
            try:
                if take(item):
                    return
            except Exception as error:  # as if the reader had taken it: a broken answer breaks no other, nor the node
                self._failure = error
        self._ready.append(item)
        if waiter is not None and not waiter.done():  # `take` may have woken it
            waiter.set_result(None)

    async def next(self) -> Sequence[StreamItem]:
        """Everything that is ready; waits for at least one item. Raises what the listener raised."""
        while not self._ready:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._failure is not None:
            raise self._failure
        items = list(self._ready)
        self._ready.clear()
        return items


class StreamEdge:
    """Performs Deliver, Show, Admitted, End and Record (`driver.Edge`)."""

    def __init__(self, on_decision: Callable[[Decision], None], on_evidence: Callable[[EvidenceRecord], None]) -> None:
        self._streams: dict[RequestId, Stream] = {}
        self.on_relayed_end: Callable[[End], None] = _unheard
        self._on_decision, self._on_evidence = on_decision, on_evidence

    def open(self, request: RequestId) -> Stream:
        """The stream of a request that is about to arrive. Raises InvariantError for an id in use."""
        if request in self._streams:
            raise InvariantError(f"request {request} has a stream already")
        stream = self._streams[request] = Stream()
        return stream

    def close(self, request: RequestId) -> None:
        """Nobody reads this stream any more."""
        self._streams.pop(request, None)

    def deliver(self, effect: Deliver) -> None:
        """Tokens for a client; none for one that is gone."""
        if (stream := self._streams.get(effect.request)) is not None:
            stream.put(effect)

    def show(self, effect: Show) -> None:
        """What was made of a picture or a video so far."""
        if (stream := self._streams.get(effect.request)) is not None:
            stream.put(effect)

    def admitted(self, effect: Admitted) -> None:
        """What the client is told before its first token."""
        if (stream := self._streams.get(effect.request)) is not None:
            stream.put(effect)

    def end(self, effect: End) -> None:
        """The end of a client's stream."""
        if (stream := self._streams.get(effect.request)) is not None:
            stream.put(effect)
        else:
            self.on_relayed_end(effect)

    def record(self, effect: Record) -> None:
        """A decision or an evidence record."""
        if isinstance(effect.entry, EvidenceRecord):
            self._on_evidence(effect.entry)
        else:
            self._on_decision(effect.entry)


def _unheard(_: End) -> None:
    """Nothing is relayed: the client is gone."""
