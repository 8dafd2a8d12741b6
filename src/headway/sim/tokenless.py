"""An engine without KV and without content: every answer is as long as the workload says, and no longer.

It stands in for `engines.synthetic` where routing is studied: same plans, same ends, no work per prompt token.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from headway.core.errors import EngineError
from headway.core.events import Stopped
from headway.core.ids import RequestId
from headway.core.plans import StepPlan
from headway.workload.offered import ANSWER_TOKEN


class TokenlessEngine:
    """Counts rows. Copies between replicas carry nothing.

    A row that decodes is not visited: the step in which it stops is known when it joins.
    """

    def __init__(self, lengths: Mapping[RequestId, int]) -> None:
        """`lengths`: output tokens of each request; the scheduler is not told."""
        self.beat = ANSWER_TOKEN
        self._lengths = lengths
        self._left: dict[int, int] = {}  # output tokens until it stops, by sequence; as of its join while it decodes
        self._decoding: dict[int, int] = {}  # sequence -> steps before it joined
        self._ends: dict[int, dict[int, None]] = {}  # count of steps -> who stops with that one
        self._stops: list[int] = []  # heap of its keys, those of the past too
        self._count = 0

    def quiet(self) -> int | None:
        """Steps from now that nobody stops before, the one in which somebody does included; None: nobody will."""
        stops = self._stops
        while stops and (stops[0] <= self._count or not self._ends.get(stops[0])):
            heappop(stops)
        return stops[0] - self._count if stops else None

    def skip(self, steps: int) -> None:
        """So many steps were alike, and are done."""
        self._count += steps

    def apply(self, plan: StepPlan) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Stopped, ...]]:
        """Apply a plan and return sampled sequences, their tokens, and who stopped. Raises EngineError on drift."""
        left, decoding = self._left, self._decoding
        if plan.kind == "decode" and self.beat >= 0 and not (plan.join or plan.leave or plan.preempt or plan.pause):
            if plan.decodes != len(decoding):
                raise EngineError(f"step {plan.step}: plan decodes {plan.decodes}, {len(decoding)} have joined")
            self._count += 1
            ends = self._ends.pop(self._count, None)
            return (), (), () if ends is None else tuple(map(Stopped, ends))
        for seq in plan.leave:
            self._part(seq)
            left.pop(seq, None)
        for seq in (*plan.preempt, *plan.pause):
            self._part(seq)
        for new in plan.new:
            left[new.seq] = self._lengths[new.request] - len(new.outputs)
        for join in plan.join:
            self._part(join.seq)
            decoding[join.seq] = self._count
            last = self._count + left[join.seq]
            if last not in self._ends:
                self._ends[last] = {}
                heappush(self._stops, last)
            self._ends[last][join.seq] = None
        if plan.decodes != len(decoding):
            raise EngineError(f"step {plan.step}: plan decodes {plan.decodes}, {len(decoding)} have joined")
        self._count += 1
        stopped = [Stopped(seq) for seq in self._ends.pop(self._count, ())]
        named = decoding if self.beat < 0 else [join.seq for join in plan.join]
        sampled = [chunk.seq for chunk in plan.chunks if chunk.samples]
        for seq in sampled:
            rest = left[seq] = left[seq] - 1
            if not rest:
                stopped.append(Stopped(seq))
        seqs = (*named, *sampled)
        return seqs, (ANSWER_TOKEN,) * len(seqs), tuple(stopped)

    def _part(self, seq: int) -> None:
        joined = self._decoding.pop(seq, None)
        if joined is not None:
            ends = self._ends.get(joined + self._left[seq])
            if ends is not None:
                ends.pop(seq, None)
            self._left[seq] -= self._count - joined

    def read_blocks(self, blocks: Sequence[int]) -> bytes:  # noqa: ARG002  SimEngine
        """Nothing to read."""
        return b""

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        """Nothing to write."""

    def lose_kv(self) -> None:
        """Nothing to lose."""
