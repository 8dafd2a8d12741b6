"""Least-served tenant first."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX
from headway.sched.llm.policies._sorted import SortedSeqs
from headway.sched.llm.policies._static import Victims
from headway.sched.llm.protocols import HeadDependsOn, OrderContext
from headway.sched.llm.sequence import Seq

_UNIT = 720_720  # divisible by every weight up to 16, so their shares are exact


class _Tenant:
    """Service so far is a line between changes: counter + rate * (step - since)."""

    __slots__ = ("active", "counter", "idle_at", "name", "queue", "rate", "running", "since")

    def __init__(self, name: str, step: int) -> None:
        self.name, self.since = name, step
        self.counter = self.rate = self.active = 0
        self.idle_at = -1
        self.queue, self.running = SortedSeqs(), Victims()


class Fair:
    """Virtual token counters (Sheng et al., Fairness in Serving LLMs, OSDI 2024): weighted, work conserving.

    Prompt tokens computed cost one, generated ones `output_cost`, both divided by the tenant's weight. A tenant that
    returns from idle is lifted to the least-served active one: absence earns no credit. Inside a tenant: arrival.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`output_cost`: what a generated token costs in prompt tokens."""

        output_cost: Annotated[int, msgspec.Meta(ge=1)] = 2

    displaces: ClassVar[bool] = False
    competes: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = False
    head_depends_on: ClassVar[HeadDependsOn] = "step"
    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "tokens served per tenant, tenant weights, arrival times"
    good_at: ClassVar[str] = "one tenant's flood does not delay the others"
    blind_spot: ClassVar[str] = "deadlines; a tenant with one long request looks as served as one with many short ones"

    def __init__(self, params: Params, context: OrderContext) -> None:
        self._output_cost = params.output_cost
        self._tenants: dict[str, _Tenant] = {}
        self._active: dict[str, _Tenant] = {}
        self._queued: dict[str, _Tenant] = {}
        self._holding: dict[str, _Tenant] = {}

    def served(self, tenant: str, step: int) -> int:
        """Weighted service of `tenant` before `step`, in 1/_UNIT prompt tokens; 0 when unknown."""
        known = self._tenants.get(tenant)
        return 0 if known is None else self._served(known, step)

    def _served(self, tenant: _Tenant, step: int) -> int:
        return tenant.counter + tenant.rate * (step - tenant.since)

    def _least(self, step: int) -> _Tenant:
        return min(self._queued.values(), key=lambda t: (self._served(t, step), t.name))

    def head(self, step: int) -> Seq | None:
        """O(tenants that wait)."""
        return self._least(step).queue.peek() if self._queued else None

    def victims(self, step: int) -> list[Seq]:
        """The latest of the most-served tenant. O(tenants that run)."""
        if not self._holding:
            return []
        most = max(self._holding.values(), key=lambda t: (self._served(t, step), t.name))
        return most.running.first()

    def outranks(self, head: Seq, running: Seq) -> bool:
        """Fairness waits for blocks; it takes none."""
        return False

    def turn(self, seq: Seq) -> int:
        """As admitted."""
        return 0

    def overtakes(self, head: Seq, partial: Seq) -> bool:
        """Who was admitted goes on."""
        return False

    def score(self, seq: Seq, step: int) -> float:
        """Weighted tokens served to its tenant."""
        return self.served(seq.request.tenant, step) / _UNIT

    def runners_up(self, step: int) -> list[Seq]:
        """The heads of the least-served tenants."""
        order = sorted(self._queued.values(), key=lambda t: (self._served(t, step), t.name))
        heads = [tenant.queue.peek() for tenant in order[:ALTERNATIVES_MAX]]
        return [seq for seq in heads if seq is not None]

    def observe_wait(self, seq: Seq, step: int) -> None:
        """`seq` queues; its tenant may return from idle."""
        tenant = self._activity(seq, step, 1)
        tenant.queue.push(seq, (0 if seq.preemptions else 1, seq.arrived_ns, seq.id))
        self._queued[tenant.name] = tenant

    def observe_unwait(self, seq: Seq, step: int) -> None:
        """`seq` left the queue."""
        tenant = self._tenants[seq.request.tenant]
        tenant.queue.discard(seq)
        if not tenant.queue:
            del self._queued[tenant.name]
        self._activity(seq, step, -1)

    def observe_start(self, seq: Seq, step: int, victim: bool) -> None:
        """`seq` holds blocks."""
        tenant = self._activity(seq, step, 1)
        if victim:
            tenant.running.add(seq)
            self._holding[tenant.name] = tenant

    def observe_stop(self, seq: Seq, step: int) -> None:
        """`seq` holds none any more."""
        tenant = self._tenants[seq.request.tenant]
        tenant.running.discard(seq)
        if not len(tenant.running):
            self._holding.pop(tenant.name, None)
        self._activity(seq, step, -1)

    def observe_decode(self, seq: Seq, step: int, change: int) -> None:
        """The slope of its tenant's line changes."""
        tenant = self._tenants[seq.request.tenant]
        self._settle(tenant, step)
        tenant.rate += change * (self._output_cost * _UNIT // seq.request.tenant_weight)

    def observe_prefill(self, seq: Seq, step: int, tokens: int) -> None:
        """Prompt tokens were planned."""
        self._tenants[seq.request.tenant].counter += tokens * _UNIT // seq.request.tenant_weight

    def _settle(self, tenant: _Tenant, step: int) -> None:
        tenant.counter, tenant.since = self._served(tenant, step), step

    def _activity(self, seq: Seq, step: int, change: int) -> _Tenant:
        name = seq.request.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, step)
        if not tenant.active and tenant.idle_at < step and self._active:
            floor = min(self._served(other, step) for other in self._active.values())
            self._settle(tenant, step)
            tenant.counter = max(tenant.counter, floor)
        tenant.active += change
        if tenant.active:
            self._active[name] = tenant
        else:
            del self._active[name]
            tenant.idle_at = step  # a preemption empties a tenant for a moment; that is no absence
            self._sweep(step)
        return tenant

    def _sweep(self, step: int) -> None:
        """Idle tenants below the floor are as good as new ones; do not remember them for ever."""
        if len(self._tenants) <= 2 * len(self._active) + 1024 or not self._active:
            return
        floor = min(self._served(other, step) for other in self._active.values())
        for name, tenant in list(self._tenants.items()):
            if not tenant.active and tenant.counter <= floor:
                del self._tenants[name]
