"""Whether a batch gives way at a step boundary to what is more urgent (SPEC F6). Pools by shape come first; this is
for those who have one pool, and off unless it is asked for."""

from collections.abc import Sequence

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Decision
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.sched.diffusion.batches import Batches
from headway.sched.diffusion.params import Preemption
from headway.sched.diffusion.protocols import Item
from headway.sched.diffusion.queue import WaitingLine


class Switch(msgspec.Struct, frozen=True):
    """Who takes the place of a batch, and why."""

    head: Item
    reason: str

    def decisions(self, batch: Sequence[Item], at_ns: Ns) -> list[Decision]:
        """One for each request that gives way."""
        others = tuple(Alternative(item.request.id, s_from_ns(item.work_ns)) for item in batch[:ALTERNATIVES_MAX])
        head, reason = self.head.request.id, self.reason
        return [Decision("step", at_ns, "interrupt", head, reason, others, item.request.id) for item in batch]


class Preempter:
    """Asks; it moves no request."""

    def __init__(self, params: Preemption, batches: Batches) -> None:
        self._params, self._batches = params, batches
        self._price_ns = ns_from_s(params.price_s)

    def switch(self, batch: Sequence[Item], line: WaitingLine, at_ns: Ns) -> Switch | None:
        """The head of the line, if the order puts it before every row and what is won is more than what is lost.

        Won is the wait of those who begin sooner; lost is the wait of the rows for that batch, and the price. Where it
        is not, a deadline can still decide: one would be missed, and none of the rows' would be.
        """
        if any(item.preemptions >= self._params.times_max for item in batch):
            return None
        (_, head), *_ = line.first(1)
        if not line.precedes(head, batch):
            return None
        sooner = self._batches.of(head, line)
        left_ns, during_ns = self._batches.left_ns(batch), self._batches.left_ns(sooner)
        lost_ns = during_ns + self._price_ns
        said = f"{len(sooner)} x {s_from_ns(during_ns):.2f} s before {len(batch)} x {s_from_ns(left_ns):.2f} s"
        if len(sooner) * left_ns > len(batch) * lost_ns:
            return Switch(head, f"{said}: waits get shorter")
        due_ns = head.request.slo.e2e_deadline_ns
        if due_ns is None or not at_ns + during_ns <= due_ns < at_ns + left_ns + during_ns:
            return None
        ends_ns = at_ns + lost_ns + left_ns
        dues = [item.request.slo.e2e_deadline_ns for item in batch]
        if any(due is not None and due < ends_ns for due in dues):
            return None
        return Switch(head, f"{said}: its deadline, and none of theirs")

    def fits(self, batch: Sequence[Item], resident: int) -> bool:
        """True when the rows may stay in the engine beside those that were interrupted before."""
        return resident + len(batch) <= self._params.resident_max
