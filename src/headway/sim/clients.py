"""Simulated clients: what they received, when they leave, and when their streams close."""

from typing import TYPE_CHECKING, Protocol

import msgspec

from headway.core.decisions import Decision
from headway.core.effects import Admitted, Deliver, End
from headway.core.errors import InvariantError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.units import Ns
from headway.workload.offered import Offered

if TYPE_CHECKING:  # streams say which source they came from, and arrivals begin streams
    from headway.sim.offers import Arrivals


class Stream(msgspec.Struct):
    """One client's view of its request."""

    sent_ns: Ns
    tokens: list[int] = []
    times_ns: list[Ns] = []
    end: End | None = None
    ended_ns: Ns | None = None
    evidence: EvidenceRecord | None = None
    leave_after: int | None = None  # tokens after which the client disconnects
    stop_after: int | None = None  # tokens after which the edge finds a stop string
    has_left: bool = False
    degraded: tuple[tuple[str, int | str], ...] = ()
    arrivals: "Arrivals | None" = None  # the source that it came from; told when it is over
    offered: Offered | None = None  # what the source said of it

    @property
    def first_ns(self) -> Ns | None:
        """When its first token came."""
        return self.times_ns[0] if self.times_ns else None

    @property
    def ttft_ns(self) -> Ns | None:
        """Time to the first token."""
        return self.times_ns[0] - self.sent_ns if self.times_ns else None

    @property
    def tpot_ns(self) -> float | None:
        """Mean time per output token after the first."""
        count = len(self.times_ns)
        return (self.times_ns[-1] - self.times_ns[0]) / (count - 1) if count > 1 else None


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

    def start(self, request: RequestId, stream: Stream) -> None:
        """A client sends its request."""
        self.streams[request] = stream
        self.open += 1
        self.unrecorded += 1

    def deliver(self, effect: Deliver, at_ns: Ns) -> Stream:
        """Take tokens. Raises InvariantError for a gap, a repetition, or a token after the end."""
        stream, tokens = self.streams[effect.request], effect.tokens
        if stream.end is not None:
            raise InvariantError(f"client of {effect.request} got a token after its end")
        if effect.index != len(stream.tokens):
            raise InvariantError(f"client of {effect.request} got token {effect.index}, expected {len(stream.tokens)}")
        stream.tokens += tokens
        if len(tokens) == 1:
            stream.times_ns.append(at_ns)
        else:
            stream.times_ns.extend([at_ns] * len(tokens))
        return stream

    def admitted(self, effect: Admitted) -> None:
        """What it is told before its first token."""
        self.streams[effect.request].degraded = effect.degraded

    def end(self, effect: End, at_ns: Ns) -> Stream:
        """Take the end. Raises InvariantError for a second one."""
        stream = self.streams[effect.request]
        if stream.end is not None:
            raise InvariantError(f"client of {effect.request} ended twice")
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
            sink.request(entry, self.streams.pop(entry.request))
