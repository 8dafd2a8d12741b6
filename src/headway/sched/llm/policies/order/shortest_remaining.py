"""Shortest remaining predicted work first, at every step."""

from typing import Annotated, ClassVar

import msgspec

from headway.sched.llm.policies._sorted import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.policies._work import work_left_ns
from headway.sched.llm.protocols import OrderContext
from headway.sched.llm.sequence import Seq


class ShortestRemaining(StaticOrder):
    """key = arrival + stretch * predicted time that is left; the step's prompt tokens go to the smallest.

    Preemptive at step boundaries: a prompt in progress pauses for one with less to do, and keeps its blocks and its
    seat. No KV is thrown away for it, so that what is left only shrinks. Rows that decode share every step anyway.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`unknown_tokens`: outputs assumed without a prediction; `stretch`: how much work weighs against waiting."""

        unknown_tokens: Annotated[int, msgspec.Meta(ge=1)] = 256
        stretch: Annotated[int, msgspec.Meta(ge=1)] = 10

    takes_turns: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "what is left of the prompt, predicted output length, the belief about step times"
    good_at: ClassVar[str] = "mean latency where short prompts arrive behind long ones that have begun"
    blind_spot: ClassVar[str] = (
        "seats and KV: who paused keeps them, so a full batch makes the short wait; long prompts pay for the mean, and "
        "a wrong length is worse than none"
    )

    def __init__(self, params: Params, context: OrderContext) -> None:
        super().__init__(params, context)
        self._params = params

    def turn(self, seq: Seq) -> int:
        """Smaller is sooner; of a prompt in progress it shrinks with every chunk."""
        work_ns = work_left_ns(self.context, seq, self._params.unknown_tokens)
        return seq.arrived_ns + self._params.stretch * work_ns

    def overtakes(self, head: Seq, partial: Seq) -> bool:
        """It has less to do, however little; equals go on."""
        return self.turn(head) < self.turn(partial)

    def wait_key(self, seq: Seq) -> Key:
        """Fixed while it waits: nothing of it is computed."""
        return (self.turn(seq), seq.id)
