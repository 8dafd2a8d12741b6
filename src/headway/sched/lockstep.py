"""A WorkerNode in a group: no step runs before all ranks agreed on it; a rank without work runs a dummy (SPEC D2)."""

from typing import Final

import msgspec

from headway.core.effects import WakeAt
from headway.core.events import PeerJoined, PeerLost, Proposal, Proposals, StepFailed
from headway.core.ids import TimerId
from headway.core.plans import StepPlan
from headway.core.units import Ns, ns_from_ms
from headway.sched.runtime.agreement import IDLE
from headway.sched.runtime.group import Group
from headway.sched.worker import LlmWorker

POLL_TIMER: Final = TimerId("group")


class Lockstep:
    """Replaces the worker's own pump."""

    def __init__(self, worker: LlmWorker, group: Group) -> None:
        self.dummies = 0
        self._worker, self._group = worker, group
        self._plan: StepPlan | None = None  # proposed, not agreed
        self._is_asleep = False  # everybody was idle
        self._poll_ns = ns_from_ms(group.params.idle_poll_ms)

    def pump(self, at_ns: Ns) -> None:
        """Propose the next step while a credit is free; the proposal for N + 1 is made while N runs."""
        worker, group = self._worker, self._group
        if not group.is_complete or group.is_waiting or not worker.has_credit:
            return
        plan = worker.machine.plan(at_ns) if worker.machine.runnable else None
        if plan is None and self._is_asleep:
            return
        self._is_asleep = False
        self._plan = plan
        worker.out.append(group.propose(IDLE if plan is None else _proposal(plan), at_ns))

    def heard(self, event: Proposals) -> None:
        """All have spoken: run the plan, a dummy, or nothing."""
        agreement = self._group.heard(event)
        if agreement is None:
            return
        plan, self._plan = self._plan, None
        if agreement.kind == "idle":
            self._is_asleep = True
            self._worker.out.append(WakeAt(event.at_ns + self._poll_ns, POLL_TIMER))
        elif plan is not None:
            self._worker.launch(msgspec.structs.replace(plan, bucket=agreement.padded), event.at_ns)
        else:
            self.dummies += 1
            dummy = StepPlan(-self.dummies, 0, "dummy", bucket=agreement.padded)
            self._worker.launch(dummy, event.at_ns)

    def woke(self) -> None:
        """Ask the others again whether anybody has work."""
        self._is_asleep = False

    def lost(self, event: PeerLost) -> bool:
        """A member is gone: what ran or was proposed is void. True when the group broke."""
        if not self._group.lost(event.node, event.incarnation):
            return False
        plan, self._plan = self._plan, None
        self._worker.void(StepFailed(event.at_ns, event.cause, 0, f"{event.node} was lost"), plan)
        return True

    def take_back(self) -> StepPlan | None:
        """An engine failure voids what was proposed too; the others run that step, and here a dummy does."""
        plan, self._plan = self._plan, None
        return plan

    def joined(self, event: PeerJoined) -> None:
        """A member is there: a new generation begins once all are."""
        if self._group.joined(event.node, event.incarnation):
            self._is_asleep = False


def _proposal(plan: StepPlan) -> Proposal:
    longest = max((chunk.count for chunk in plan.chunks), default=0)
    kind = "decode" if not plan.chunks else "mixed" if plan.decodes else "prefill"
    return Proposal(kind, plan.tokens, plan.tokens, longest)
