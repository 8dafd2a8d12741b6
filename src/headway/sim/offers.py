"""What sources offer to a simulation: pulled one by one, so that memory holds what is in flight."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headway.core.events import RequestArrived
from headway.core.ids import ModelId, NodeId, RequestId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_S, Ns
from headway.sim.clients import Stream
from headway.sim.door import Door
from headway.workload.offered import Offered, Source

if TYPE_CHECKING:  # the driver owns the offers, and the offers schedule on the driver
    from headway.sim.driver import Simulation

MOVED: Final = "~"  # between the id of a request and the model that it was moved to
# After its evidence a dispatch of a request may still be under way: a hedge that lost, or one that was given up and
# lies in a plan behind steps of seconds.
LINGER_NS: Final = 60 * NS_PER_S


class Arrivals:
    """One source at one front: a single arrival of its open end waits for its time."""

    def __init__(self, front: NodeId, source: Source) -> None:
        self.front, self.source = front, source
        self.rest: Iterator[Offered] = source.first()


class Offers:
    """Lets requests arrive, and knows how long their answers get."""

    def __init__(self, sim: "Simulation") -> None:
        self.lengths: dict[RequestId, int] = {}  # output tokens, for the engines; forgotten when all is over
        self.waiting = 0  # requests that wait for their time
        self.arrived = 0  # requests that were sent
        self.door = Door()
        self._sim = sim
        self._over: deque[tuple[Ns, RequestId]] = deque()

    def open(self, front: NodeId, source: Source) -> None:
        """Begin to pull from a source."""
        self._pull(Arrivals(front, source))

    def _pull(self, arrivals: Arrivals) -> None:
        item = next(arrivals.rest, None)
        if item is not None:
            self._expect(arrivals, item, is_first=True)

    def _expect(self, arrivals: Arrivals, item: Offered, *, is_first: bool) -> None:
        self.waiting += 1
        self._sim.schedule(item.request.arrived_ns, self._arrive, (arrivals, item, is_first))

    def _arrive(self, due: tuple[Arrivals, Offered, bool]) -> None:
        arrivals, item, is_first = due
        sim, door = self._sim, self.door
        self.waiting -= 1
        if is_first:
            self._pull(arrivals)
        received_ns, ready_ns = door.enter(sim.now_ns)
        request = door.promise(item.request, received_ns)
        if request is not item.request:
            item = Offered(request, item.output_tokens)
        self.lengths[request.id] = item.output_tokens
        self.arrived += 1
        stream = Stream(sim.now_ns, arrivals=arrivals)
        stream.offered = item
        sim.clients.start(request.id, stream)
        event = RequestArrived(ready_ns, request.id, request, received_ns, received_ns)
        if ready_ns == sim.now_ns:
            sim.feed(arrivals.front, event)
        else:
            sim.schedule(ready_ns, self._hand_over, (arrivals.front, event))

    def _hand_over(self, due: tuple[NodeId, RequestArrived]) -> None:
        self._sim.feed(*due)

    def move(self, arrivals: Arrivals, stream: Stream, to: ModelId) -> None:
        """Admission sent a request to another model before anything was answered: the edge submits it there."""
        sim, offered = self._sim, stream.offered
        assert offered is not None
        assert isinstance(offered.request, LlmRequest)  # admission moves no other
        request = self.door.readdress(offered.request, to)
        request = msgspec.structs.replace(request, id=RequestId(f"{request.id}{MOVED}{to}"))
        self.lengths[request.id] = offered.output_tokens
        again = Stream(stream.sent_ns, arrivals=arrivals)
        again.offered = Offered(request, offered.output_tokens)
        sim.clients.start(request.id, again)
        event = RequestArrived(sim.now_ns, request.id, request, sim.now_ns, sim.now_ns)
        sim.schedule(sim.now_ns, self._hand_over, (arrivals.front, event))

    def go_on(self, arrivals: Arrivals, ended: RequestId, stream: Stream) -> None:
        """An answer is over and, one way later, with its client, who may have something more to say."""
        at_ns = self._sim.now_ns + self.door.way_ns
        sent = RequestId(ended.partition(MOVED)[0])
        item = arrivals.source.after(sent, at_ns, self._answer(ended, stream))
        if item is not None:
            self._expect(arrivals, item, is_first=False)

    def _answer(self, ended: RequestId, stream: Stream) -> Sequence[int] | None:
        """What the client has: nothing of a failure; None: all that was due."""
        if stream.end is not None and stream.end.error is not None:
            return ()
        return None if len(stream.tokens) == self.lengths[ended] else tuple(stream.tokens)

    def recorded(self, request: RequestId) -> None:
        """Nothing more will happen to a request."""
        if request not in self.lengths:
            return
        over, now_ns = self._over, self._sim.now_ns
        over.append((now_ns + LINGER_NS, request))
        while over[0][0] < now_ns:
            del self.lengths[over.popleft()[1]]
