"""Simulated clients: what they received, when they leave, and when their streams close."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from headway.core.decisions import Decision
from headway.core.effects import Admitted, Beat, Deliver, End, Show
from headway.core.errors import InvariantError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId
from headway.core.units import Ns
from headway.workload.offered import Offered

if TYPE_CHECKING:  # streams say which source they came from, and arrivals begin streams
    from headway.sim.offers import Arrivals


ALONE: Final = NodeId("front-0")
TIMES_MAX: Final = 4096  # beats of one replica that are kept in any case


class Pulse:
    """When the beats of one replica came; of the old ones only those that a stream still has to read."""

    def __init__(self) -> None:
        self.token = 0
        self.count = 0  # beats ever
        self.streams: dict[RequestId, Stream] = {}  # that follow
        self._times: list[Ns] = []
        self._first = 0  # number of the first of these

    def beat(self, token: int, at_ns: Ns) -> None:
        """Every stream that follows has one more token."""
        self.token = token
        self.count += 1
        self._times.append(at_ns)
        self._forget()

    def _forget(self) -> None:
        if len(self._times) >= TIMES_MAX + 64 * len(self.streams):
            kept = min((stream.heard for stream in self.streams.values()), default=self.count)
            del self._times[: kept - self._first]
            self._first = kept
            if len(self._times) > TIMES_MAX:
                for stream in self.streams.values():
                    stream.catch_up()

    def beats(self, token: int, times_ns: Sequence[Ns]) -> None:
        """The same for each of several times."""
        self.token = token
        self.count += len(times_ns)
        self._times += times_ns
        self._forget()

    def since(self, heard: int) -> list[Ns]:
        """The times after the first `heard` beats."""
        return self._times[heard - self._first :]


class Stream:
    """One client's view of its request."""

    def __init__(
        self,
        sent_ns: Ns,
        leave_after: int | None = None,
        stop_after: int | None = None,
        arrivals: "Arrivals | None" = None,
    ) -> None:
        """The client disconnects after `leave_after` tokens; the edge finds a stop string after `stop_after`."""
        self.sent_ns = sent_ns
        self.leave_after, self.stop_after = leave_after, stop_after
        self.arrivals = arrivals  # the source that it came from; told when it is over
        self.end: End | None = None
        self.ended_ns: Ns | None = None
        self.evidence: EvidenceRecord | None = None
        self.has_left = False
        self.is_moved = False  # it was submitted again, to another model: that one's answer counts
        self.offered: Offered | None = None  # what the source said of it
        self.degraded: tuple[tuple[str, int | str], ...] = ()
        self.heard = 0  # beats
        self.shown: list[Show] = []  # of a picture or a video
        self._pulse: Pulse | None = None
        self._tokens: list[int] = []
        self._times_ns: list[Ns] = []

    @property
    def tokens(self) -> list[int]:
        """What it has got."""
        if self._pulse is not None:
            self.catch_up()
        return self._tokens

    @property
    def times_ns(self) -> list[Ns]:
        """When each of its tokens came."""
        if self._pulse is not None:
            self.catch_up()
        return self._times_ns

    def follow(self, pulse: Pulse) -> None:
        """A token comes with every beat from now on."""
        self._pulse, self.heard = pulse, pulse.count

    def catch_up(self) -> None:
        """Fold in the beats so far."""
        pulse = self._pulse
        if pulse is None or pulse.count == self.heard:
            return
        self._times_ns += pulse.since(self.heard)
        self._tokens += [pulse.token] * (pulse.count - self.heard)
        self.heard = pulse.count

    def part(self) -> Pulse | None:
        """No token comes with the next beat; return what it followed."""
        pulse = self._pulse
        self.catch_up()
        self._pulse = None
        return pulse

    @property
    def first_ns(self) -> Ns | None:
        """When its first token came."""
        return self._times_ns[0] if self._times_ns else None

    @property
    def ttft_ns(self) -> Ns | None:
        """Time to the first token."""
        return self._times_ns[0] - self.sent_ns if self._times_ns else None

    @property
    def tpot_ns(self) -> float | None:
        """Mean time per output token after the first."""
        times = self.times_ns
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


class Sink(Protocol):
    """Takes what is over, so that a run holds what is in flight and nothing else."""

    def request(self, record: EvidenceRecord, stream: Stream) -> None:
        """A request is over; its stream is forgotten after this call."""
        ...

    def decision(self, decision: Decision) -> None:
        """A decision that belongs to no request's record."""
        ...


class Clients:
    """The streams of a run, by request id, in the order of their start: all of them, or those a sink has not got."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.streams: dict[RequestId, Stream] = {}
        self.decisions: list[Decision] = []
        self.open = 0  # without an end
        self.unrecorded = 0  # without evidence
        self._sink = sink
        self._pulses: dict[tuple[NodeId, NodeId], Pulse] = {}
        self._counting: dict[RequestId, None] = {}  # clients that leave or stop after so many tokens

    def start(self, request: RequestId, stream: Stream) -> None:
        """A client sends its request."""
        self.streams[request] = stream
        if stream.leave_after is not None or stream.stop_after is not None:
            self._counting[request] = None
        self.open += 1
        self.unrecorded += 1

    def deliver(self, effect: Deliver, at_ns: Ns, front: NodeId = ALONE) -> Stream:
        """Take tokens. Raises InvariantError for a gap, a repetition, or a token after the end."""
        stream, tokens = self.streams[effect.request], effect.tokens
        if stream.end is not None:
            raise InvariantError(f"client of {effect.request} got a token after its end")
        self._part(effect.request, stream)
        held = stream.tokens
        if effect.index != len(held):
            raise InvariantError(f"client of {effect.request} got token {effect.index}, expected {len(held)}")
        held += tokens
        if len(tokens) == 1:
            stream.times_ns.append(at_ns)
        else:
            stream.times_ns.extend([at_ns] * len(tokens))
        if effect.follows is not None:
            pulse = self._pulse(front, effect.follows)
            pulse.streams[effect.request] = stream
            stream.follow(pulse)
        return stream

    def beat(self, effect: Beat, at_ns: Ns, front: NodeId = ALONE) -> list[tuple[RequestId, Stream]]:
        """A token for all that follow a replica through this front; return those of them that count their tokens."""
        pulse = self._pulse(front, effect.replica)
        if effect.times:
            pulse.beats(effect.token, effect.times)
        else:
            pulse.beat(effect.token, at_ns)
        if not self._counting:
            return []
        return [(name, stream) for name, stream in pulse.streams.items() if name in self._counting]

    def _pulse(self, front: NodeId, replica: NodeId) -> Pulse:
        pair = (front, replica)
        pulse = self._pulses.get(pair)
        if pulse is None:
            pulse = self._pulses[pair] = Pulse()
        return pulse

    @staticmethod
    def _part(request: RequestId, stream: Stream) -> None:
        pulse = stream.part()
        if pulse is not None:
            del pulse.streams[request]

    def show(self, effect: Show) -> None:
        """What was made of a picture or a video so far."""
        self.streams[effect.request].shown.append(effect)

    @property
    def counts_tokens(self) -> bool:
        """Some client leaves, or stops, after so many."""
        return bool(self._counting)

    def admitted(self, effect: Admitted) -> None:
        """What it is told before its first token."""
        self.streams[effect.request].degraded = effect.degraded

    def end(self, effect: End, at_ns: Ns) -> Stream:
        """Take the end. Raises InvariantError for a second one."""
        stream = self.streams[effect.request]
        if stream.end is not None:
            raise InvariantError(f"client of {effect.request} ended twice")
        self._part(effect.request, stream)
        self._counting.pop(effect.request, None)
        stream.end, stream.ended_ns = effect, at_ns
        self.open -= 1
        return stream

    def record(self, entry: Decision | EvidenceRecord) -> None:
        """Keep decisions and evidence, or hand them on."""
        sink = self._sink
        if isinstance(entry, Decision):
            if sink is None:
                self.decisions.append(entry)
            else:
                sink.decision(entry)
            return
        self.unrecorded -= 1
        if sink is None:
            self.streams[entry.request].evidence = entry
        else:
            stream = self.streams.pop(entry.request)
            if not stream.is_moved:
                sink.request(entry, stream)
