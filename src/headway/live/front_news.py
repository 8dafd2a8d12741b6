"""What a further gateway process tells the main one: collected here, sent soon, bounded."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from headway.adapters.gateway.relay.prepare import Prepared
from headway.core.decisions import Decision
from headway.core.effects import Admitted, Deliver, End, Record, Show
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.request import LlmRequest, TextRequest
from headway.live.wire import Frame, Named, News

SOON_S: Final = 0.02  # after something has happened
STANDING_S: Final = 0.5  # when nothing has
KEPT_MAX: Final = 20_000  # of each kind, between two frames; the oldest are lost first


class Sender(Protocol):
    """The link to the main process."""

    def send(self, frame: Frame) -> None: ...


class FrontNews:
    """Performs what its front tells the telemetry (`driver.Edge`), and is the relay's witness (`server.Witness`)."""

    def __init__(self, link: Sender, standing: Callable[[], News], loop: asyncio.AbstractEventLoop) -> None:
        """`standing` returns how the front stands."""
        self._link, self._standing, self._loop = link, standing, loop
        self.requests: dict[RequestId, LlmRequest | TextRequest] = {}  # whose evidence is still to come
        self.on_end: Callable[[End], None]
        self._named: deque[Named] = deque(maxlen=KEPT_MAX)
        self._decisions: deque[Decision] = deque(maxlen=KEPT_MAX)
        self._ended: deque[tuple[EvidenceRecord, TextRequest | None]] = deque(maxlen=KEPT_MAX)
        self._tokens: dict[str, tuple[int, int]] = {}
        self._refused = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tell how it stands, now and then."""
        self.flush()

    def flush(self) -> None:
        """Send what there is."""
        if self._timer is not None:
            self._timer.cancel()
        news = msgspec.structs.replace(
            self._standing(),
            named=tuple(self._named),
            decisions=tuple(self._decisions),
            ended=tuple(self._ended),
            tokens=tuple((model, *tokens) for model, tokens in self._tokens.items()),
            refused=self._refused,
        )
        self._named.clear()
        self._decisions.clear()
        self._ended.clear()
        self._tokens.clear()
        self._refused = 0
        self._timer = self._loop.call_later(STANDING_S, self.flush)
        self._link.send(news)

    def _soon(self) -> None:
        timer = self._timer
        if timer is not None and timer.when() - self._loop.time() > SOON_S:
            timer.cancel()
            self._timer = self._loop.call_later(SOON_S, self.flush)

    # Edge

    def deliver(self, effect: Deliver) -> None:
        """Never: what upstreams answer passes by the front."""
        raise AssertionError(f"tokens for relayed request {effect.request}")

    def show(self, effect: Show) -> None:
        """Never: upstreams make no pictures."""
        raise AssertionError(f"a picture for relayed request {effect.request}")

    def admitted(self, effect: Admitted) -> None:
        """An upstream is told by its call."""

    def end(self, effect: End) -> None:
        """The end of a request."""
        self.on_end(effect)

    def record(self, effect: Record) -> None:
        """A decision or an evidence record."""
        entry = effect.entry
        if isinstance(entry, EvidenceRecord):
            request = self.requests.pop(entry.request, None)
            trace = None if request is None else request.trace
            if trace is not None:
                entry = msgspec.structs.replace(entry, trace_id=trace.trace_id)
            shown = msgspec.structs.replace(request, block_hashes=()) if isinstance(request, TextRequest) else None
            self._ended.append((entry, shown))
        else:
            self._decisions.append(entry)
        self._soon()

    # Witness

    def submitted(self, prepared: Prepared) -> None:
        """A request is about to be submitted."""
        request = prepared.request.id
        self._named.append(Named(prepared.public_id, prepared.tenant.id, request, prepared.trace.trace_id))

    def count(self, model: str, prompt: int, output: int) -> None:
        """A whole answer, and its tokens."""
        before = self._tokens.get(model, (0, 0))
        self._tokens[model] = before[0] + prompt, before[1] + output

    def refused(self) -> None:
        """A request was refused for what it asks."""
        self._refused += 1
        self._soon()
