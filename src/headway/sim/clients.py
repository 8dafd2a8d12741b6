"""Simulated clients: what they received, when they leave, and when their streams close."""

import msgspec

from headway.core.decisions import Decision
from headway.core.effects import Admitted, Deliver, End
from headway.core.errors import InvariantError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.units import Ns


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

    @property
    def ttft_ns(self) -> Ns | None:
        """Time to the first token."""
        return self.times_ns[0] - self.sent_ns if self.times_ns else None

    @property
    def tpot_ns(self) -> float | None:
        """Mean time per output token after the first."""
        count = len(self.times_ns)
        return (self.times_ns[-1] - self.times_ns[0]) / (count - 1) if count > 1 else None


class Clients:
    """All streams of a run, by request id, in the order of their start."""

    def __init__(self) -> None:
        self.streams: dict[RequestId, Stream] = {}
        self.decisions: list[Decision] = []
        self.open = 0

    def start(self, request: RequestId, at_ns: Ns, leave_after: int | None, stop_after: int | None) -> None:
        """A client sends its request."""
        self.streams[request] = Stream(at_ns, leave_after=leave_after, stop_after=stop_after)
        self.open += 1

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
        """Keep decisions and evidence."""
        if isinstance(entry, Decision):
            self.decisions.append(entry)
        else:
            self.streams[entry.request].evidence = entry
