"""An engine without KV and without content: every answer is as long as the workload says, and no longer.

It stands in for `engines.synthetic` where routing is studied: same plans, same ends, no work per prompt token.
"""

from collections.abc import Mapping, Sequence

from headway.core.errors import EngineError
from headway.core.events import Stopped
from headway.core.ids import RequestId
from headway.core.plans import StepPlan
from headway.workload.offered import ANSWER_TOKEN


class TokenlessEngine:
    """Counts rows. Copies between replicas carry nothing."""

    def __init__(self, lengths: Mapping[RequestId, int]) -> None:
        """`lengths`: output tokens of each request; the scheduler is not told."""
        self._lengths = lengths
        self._left: dict[int, int] = {}  # output tokens until it stops, by sequence
        self._decoding: dict[int, None] = {}

    def apply(self, plan: StepPlan) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Stopped, ...]]:
        """Apply a plan and return sampled sequences, their tokens, and who stopped. Raises EngineError on drift."""
        left, decoding = self._left, self._decoding
        for seq in plan.leave:
            decoding.pop(seq, None)
            left.pop(seq, None)
        for seq in plan.preempt:
            decoding.pop(seq, None)
        for seq in plan.pause:
            decoding.pop(seq, None)
        for new in plan.new:
            left[new.seq] = self._lengths[new.request] - len(new.outputs)
        for join in plan.join:
            decoding[join.seq] = None
        if plan.decodes != len(decoding):
            raise EngineError(f"step {plan.step}: plan decodes {plan.decodes}, {len(decoding)} have joined")
        seqs = (*decoding, *(chunk.seq for chunk in plan.chunks if chunk.samples))
        stopped: list[Stopped] = []
        for seq in seqs:
            rest = left[seq] = left[seq] - 1
            if not rest:
                stopped.append(Stopped(seq))
        return seqs, (ANSWER_TOKEN,) * len(seqs), tuple(stopped)

    def read_blocks(self, blocks: Sequence[int]) -> bytes:  # noqa: ARG002  SimEngine
        """Nothing to read."""
        return b""

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        """Nothing to write."""

    def lose_kv(self) -> None:
        """Nothing to lose."""
