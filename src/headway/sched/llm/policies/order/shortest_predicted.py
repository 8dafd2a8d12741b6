"""Shortest predicted work first, with aging."""

from typing import Annotated, ClassVar

import msgspec

from headway.cost.llm import StepCost
from headway.sched.llm.policies._heap import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.protocols import OrderContext
from headway.sched.llm.sequence import Seq


class ShortestPredicted(StaticOrder):
    """key = arrival + stretch * predicted time; waiting counts one to one, so nobody is overtaken for ever.

    The prediction is fixed when the request queues.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`unknown_tokens`: outputs assumed without a prediction; `stretch`: how much work weighs against waiting."""

        unknown_tokens: Annotated[int, msgspec.Meta(ge=1)] = 256
        stretch: Annotated[int, msgspec.Meta(ge=1)] = 10

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "prompt length, predicted output length, the belief about step times"
    good_at: ClassVar[str] = "mean latency under mixed lengths"
    blind_spot: ClassVar[str] = (
        "only as good as the predicted length: until enough like it have ended, an output counts as the smaller of "
        "max_tokens and unknown_tokens; long requests pay for the mean"
    )

    def __init__(self, params: Params, context: OrderContext) -> None:
        super().__init__(params, context)
        self._params = params

    def _work_ns(self, seq: Seq) -> int:
        belief: StepCost | None = self.context.belief
        assert belief is not None  # `needs` says so
        tokens = seq.request.output_tokens_predicted
        likely = min(self._params.unknown_tokens if tokens is None else tokens, seq.request.sampling.max_tokens)
        left = max(likely - seq.outputs, 1)
        return belief.prefill_ns(seq.computed, seq.target - seq.computed) + left * belief.step_ns(1, seq.target)

    def wait_key(self, seq: Seq) -> Key:
        """The preempted first: they were the shortest once."""
        score = seq.arrived_ns + self._params.stretch * self._work_ns(seq)
        return (0 if seq.preemptions else 1, score, seq.id)
