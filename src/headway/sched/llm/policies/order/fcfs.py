"""First come, first served."""

from typing import ClassVar

import msgspec

from headway.sched.llm.policies._sorted import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.sequence import Seq


class Fcfs(StaticOrder):
    """By arrival; a preempted request comes first again."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None."""

    needs: ClassVar[frozenset[str]] = frozenset()
    competes: ClassVar[bool] = False
    sees: ClassVar[str] = "arrival times"
    good_at: ClassVar[str] = "even loads; nobody starves, nothing to tune"
    blind_spot: ClassVar[str] = "one long prompt makes every short one behind it wait"

    def wait_key(self, seq: Seq) -> Key:
        return (0 if seq.preemptions else 1, seq.arrived_ns, seq.id)
