"""Shortest predicted work first, with aging."""

from typing import Annotated, ClassVar

import msgspec

from headway.sched.llm.policies._sorted import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.policies._work import work_left_ns
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

    def wait_key(self, seq: Seq) -> Key:
        """The preempted first: they were the shortest once."""
        score = seq.arrived_ns + self._params.stretch * work_left_ns(self.context, seq, self._params.unknown_tokens)
        return (0 if seq.preemptions else 1, score, seq.id)
