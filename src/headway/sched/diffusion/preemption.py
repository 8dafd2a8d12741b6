"""Whether a batch gives way at a step boundary to what is more urgent (SPEC F6). Pools by shape come first; this is
for those who have one pool, and off unless it is asked for."""

from collections.abc import Sequence

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Decision
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.adapters import rewrites
from headway.sched.diffusion.batches import Batches
from headway.sched.diffusion.params import Preemption
from headway.sched.diffusion.protocols import Item
from headway.sched.diffusion.queue import WaitingLine


class Switch(msgspec.Struct, frozen=True):
    """Who takes the place of a batch, and why."""

    head: Item
    reason: str
    stays: bool = True  # the rows stay in the engine; else their state must be here before

    def decisions(self, batch: Sequence[Item], at_ns: Ns) -> list[Decision]:
        """One for each request that gives way."""
        others = tuple(Alternative(item.request.id, s_from_ns(item.work_ns)) for item in batch[:ALTERNATIVES_MAX])
        head, reason = self.head.request.id, self.reason
        return [Decision("step", at_ns, "interrupt", head, reason, others, item.request.id) for item in batch]


class Preempter:
    """Asks; it moves no request."""

    def __init__(self, params: Preemption, batches: Batches, belief: DenoiseCost) -> None:
        self._params, self._batches, self._belief = params, batches, belief
        self._price_ns = ns_from_s(params.price_s)

    def switch(self, batch: Sequence[Item], line: WaitingLine, at_ns: Ns, resident: int) -> Switch | None:
        """The head of the line, if the order puts it before every row and what is won is more than what is lost.

        Won is the wait of those who begin sooner; lost is the wait of the rows for that batch, and the price. Where it
        is not, a deadline can still decide: one would be missed, none of the rows' would be, and the price is less than
        the wait that is won. Rows leave the engine where they do not fit in it beside `resident` others that were
        interrupted before: they are saved with their next steps, for which those who begin sooner wait too.

        What is warm for the one is not for the other: adapters are merged for those who begin sooner and again for the
        rows, and a shape that has not run here is prepared while the rows wait. Embeddings, the solver's state and an
        edit's picture are in the row and in its checkpoint: nothing of them is made again.
        """
        if any(item.preemptions >= self._params.times_max for item in batch):
            return None
        (_, head), *_ = line.first(1)
        if not line.precedes(head, batch):
            return None
        sooner = self._batches.of(head, line)
        left_ns = self._batches.left_ns(batch)
        warms_ns = self._merging_ns(batch[0], head) + self._batches.cold_ns(sooner)
        during_ns = self._batches.left_ns(sooner) + warms_ns
        stays = resident + len(batch) <= self._params.resident_max and self._batches.has_room(head)
        price_ns = self._price_of(batch, stays=stays) + self._merging_ns(head, batch[0])
        saves = not stays and not all(item.is_saved for item in batch)
        before_ns = self._batches.next_ns(batch) if saves else 0
        won_ns, lost_ns = left_ns - before_ns, during_ns + price_ns
        said = (
            f"{len(sooner)} x {s_from_ns(during_ns):.2f} s before {len(batch)} x {s_from_ns(left_ns):.2f} s, "
            f"price {s_from_ns(price_ns):.3f} s"
        )
        if len(sooner) * won_ns > len(batch) * lost_ns:
            return Switch(head, f"{said}: waits get shorter", stays)
        due_ns = head.request.wanted_ns
        if due_ns is None or not at_ns + before_ns + during_ns <= due_ns < at_ns + left_ns + during_ns:
            return None
        if len(sooner) * won_ns <= len(batch) * price_ns:
            return None
        ends_ns = at_ns + lost_ns + left_ns
        dues = [item.request.wanted_ns for item in batch]
        if any(due is not None and due < ends_ns for due in dues):
            return None
        return Switch(head, f"{said}: its deadline, and none of theirs", stays)

    def _merging_ns(self, inside: Item, wanted: Item) -> Ns:
        """Device time until the weights have other adapters; 0 where none are merged."""
        return round(self._belief.merge_ns * rewrites(inside.request.loras, wanted.request.loras))

    def _price_of(self, batch: Sequence[Item], *, stays: bool) -> Ns:
        """Device time that the interruption takes: what saves and resumes of such rows took, of rows that stay nothing;
        the setting until both were measured."""
        prices = self._belief.interruption
        measured = [prices.of(item.request.shape, item.request.n, is_saved=item.is_saved) for item in batch]
        known = [price_ns for price_ns in measured if price_ns is not None]
        if len(known) < len(batch):
            return self._price_ns
        return 0 if stays else sum(known)
