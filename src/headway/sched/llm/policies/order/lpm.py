"""Longest prefix match first."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX
from headway.sched.llm.policies._sorted import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.protocols import HeadDependsOn, OrderContext
from headway.sched.llm.sequence import Seq


class Lpm(StaticOrder):
    """Whoever finds most of its prompt in the cache enters first.

    Beyond `queue_max` waiting, arrival decides (the scan would cost more than the hits give). The oldest request is
    passed over `skips_max` times at most, then it is next.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`queue_max`: longest queue that is scanned; `skips_max`: how often the oldest may be passed over."""

        queue_max: Annotated[int, msgspec.Meta(ge=1)] = 64
        skips_max: Annotated[int, msgspec.Meta(ge=0)] = 16

    head_depends_on: ClassVar[HeadDependsOn] = "cache"
    needs: ClassVar[frozenset[str]] = frozenset({"prefix_cache"})
    sees: ClassVar[str] = "the prefix index, queue length, arrival times"
    good_at: ClassVar[str] = "shared prompts and sessions under memory pressure: a prefix is used before it is evicted"
    blind_spot: ClassVar[str] = "length and deadlines; a popular prefix goes before everybody else's"

    def __init__(self, params: Params, context: OrderContext) -> None:
        super().__init__(params, context)
        self._queue_max, self._skips_max = params.queue_max, params.skips_max
        self._skips: dict[Seq, int] = {}

    def wait_key(self, seq: Seq) -> Key:
        """Arrival; the preempted first."""
        return (0 if seq.preemptions else 1, seq.arrived_ns, seq.id)

    def _scan_key(self, seq: Seq, step: int) -> Key:
        fresh, arrived, number = self.wait_key(seq)
        return (fresh, -self.context.prefixes.hit_tokens(seq, step), arrived, number)

    def head(self, step: int) -> Seq | None:
        """O(queue) below `queue_max`, else O(1)."""
        oldest = self.queue.peek()
        if oldest is None or len(self.queue) > self._queue_max or self._skips.get(oldest, 0) >= self._skips_max:
            return oldest
        return min(self.queue.members(), key=lambda seq: self._scan_key(seq, step))

    def score(self, seq: Seq, step: int) -> float:
        """Cached tokens, negated: lower is sooner."""
        return -float(self.context.prefixes.hit_tokens(seq, step))

    def runners_up(self, step: int) -> list[Seq]:
        """The head, then the oldest."""
        head = self.head(step)
        others = [seq for _key, seq in self.queue.first(ALTERNATIVES_MAX) if seq is not head]
        return others if head is None else [head, *others]

    def observe_start(self, seq: Seq, step: int, victim: bool) -> None:
        """Count against the oldest when it is passed over."""
        super().observe_start(seq, step, victim)
        oldest = self.queue.peek()
        if oldest is not None and oldest is not seq and seq in self.queue:
            self._skips[oldest] = self._skips.get(oldest, 0) + 1

    def observe_unwait(self, seq: Seq, step: int) -> None:
        """Forget its count."""
        super().observe_unwait(seq, step)
        self._skips.pop(seq, None)
