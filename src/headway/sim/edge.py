"""What fronts tell their clients, in simulation: streams, ends and records."""

from typing import TYPE_CHECKING

from headway.core.effects import Beat, Deliver, End, Record
from headway.core.events import ClientGone, StreamClosed, TextStopped
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.sim.clients import Stream

if TYPE_CHECKING:  # the driver owns the edge, and the edge schedules on the driver
    from headway.sim.driver import Life, Simulation


class Edge:
    """Performs Deliver, Beat, End and Record."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim, self._clients = sim, sim.clients

    def deliver(self, life: "Life", effect: Deliver) -> None:
        """Tokens of one stream."""
        stream = self._clients.deliver(effect, self._sim.now_ns, life.node.id)
        if stream.leave_after is not None or stream.stop_after is not None:
            self._counted(life, effect.request, stream)

    def beat(self, life: "Life", effect: Beat) -> None:
        """A token for every stream that follows."""
        for request, stream in self._clients.beat(effect, self._sim.now_ns, life.node.id):
            self._counted(life, request, stream)

    def _counted(self, life: "Life", request: RequestId, stream: Stream) -> None:
        """A client that leaves, or stops, after so many tokens."""
        count = len(stream.tokens)
        if stream.leave_after is not None and count >= stream.leave_after and not stream.has_left:
            stream.has_left = True
            self._sim.promise(life, self._sim.now_ns, lambda at_ns: ClientGone(at_ns, "client", request))
        elif stream.stop_after is not None and count == stream.stop_after:
            self._sim.promise(life, self._sim.now_ns, lambda at_ns: TextStopped(at_ns, "edge", request, count - 1))

    def end(self, life: "Life", effect: End) -> None:
        """A stream is over; its last byte takes a moment."""
        now_ns, request = self._sim.now_ns, effect.request
        stream = self._clients.end(effect, now_ns)
        if stream.arrivals is not None and effect.transfer_to is not None and not stream.tokens:
            stream.is_moved = True
            self._sim.offers.move(stream.arrivals, stream, effect.transfer_to)
        elif stream.arrivals is not None:
            self._sim.offers.go_on(stream.arrivals, request, stream)
        if stream.has_left:  # nobody is there to take the last byte; the front closes it by itself
            return
        closed_ns = now_ns + self._sim.params.flush_ns
        event = StreamClosed(closed_ns, "edge", request, stream.first_ns, 0)
        self._sim.schedule(closed_ns, self._sim.happen, (life, event))

    def record(self, _: "Life", effect: Record) -> None:
        """A decision, or the evidence of a request."""
        entry = effect.entry
        self._clients.record(entry)
        if isinstance(entry, EvidenceRecord):
            self._sim.offers.recorded(entry.request)
