"""By urgency, with aging and displacement."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.units import NS_PER_MS
from headway.sched.llm.policies._sorted import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.protocols import OrderContext
from headway.sched.llm.sequence import Seq


class Priority(StaticOrder):
    """Higher urgency first; a request gains one level per `age_ms` that it waits longer than another.

    Ages are counted in common ticks of the clock, so time cancels: level = urgency - arrival // age is a fixed number.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`age_ms`: waiting that is worth one level; `min_gap`: levels of urgency that displace a running request."""

        age_ms: Annotated[int, msgspec.Meta(ge=1)] = 30_000
        min_gap: Annotated[int, msgspec.Meta(ge=1)] = 1

    displaces: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "urgency (the wire's `priority`, lower is sooner) and arrival times"
    good_at: ClassVar[str] = "interactive beside batch: the urgent enter at once, the rest age and so get in"
    blind_spot: ClassVar[str] = "displacement is greedy: it may stop several and still have to wait"

    def __init__(self, params: Params, context: OrderContext) -> None:
        super().__init__(params, context)
        self._age_ns, self._min_gap = params.age_ms * NS_PER_MS, params.min_gap

    def _level(self, seq: Seq) -> int:
        """Smaller is sooner."""
        return seq.arrived_ns // self._age_ns - seq.urgency

    def wait_key(self, seq: Seq) -> Key:
        """Within a level the preempted come first."""
        return (self._level(seq), 0 if seq.preemptions else 1, seq.arrived_ns, seq.id)

    def score(self, seq: Seq, step: int) -> float:
        """The level."""
        return float(self._level(seq))

    def turn(self, seq: Seq) -> int:
        """A head does not wait for a long calm prompt."""
        return -seq.urgency

    def overtakes(self, head: Seq, partial: Seq) -> bool:
        """As for a seat."""
        return self.outranks(head, partial)

    def outranks(self, head: Seq, running: Seq) -> bool:
        """Base urgency decides, by the gap; the level keeps a displaced, older request from taking the head back."""
        return head.urgency - running.urgency >= self._min_gap and self._level(head) < self._level(running)
