"""After a failed step: how the executor and the machine come to agree again.

Nobody knows which parts of the open plans the executor applied before it failed. So it is told to forget every sequence
(`leave` of a sequence it does not know changes nothing), and each one is introduced again, with the tokens that were
folded in, when a plan next computes it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from headway.core.plans import NewSequence, StepPlan
from headway.core.request import LlmRequest
from headway.sched.stays import Stay


class Voided:
    """Amends plans until every sequence of the failed batch was introduced again or is over."""

    def __init__(self) -> None:
        self._forget: dict[int, None] = {}  # to be named in the next `leave`
        # The machine believes that the executor knows them. A stay may end between its plan and the launch.
        self._unknown: dict[int, Stay | None] = {}

    def fail(self, open_plans: Iterable[StepPlan], live: Mapping[int, Stay]) -> None:
        """Every open plan is void."""
        for plan in open_plans:
            self._forget.update(dict.fromkeys(plan.leave))
            self._forget.update((new.seq, None) for new in plan.new)
        self._forget.update(dict.fromkeys(live))
        self._unknown.update({seq: live.get(seq) or self._unknown.get(seq) for seq in self._forget})

    def amend(self, plan: StepPlan, stays: Mapping[int, Stay]) -> StepPlan:
        """Return the plan as the executor must see it."""
        unknown = self._unknown
        if not unknown:
            return plan
        leave = (*self._forget, *(seq for seq in plan.leave if seq not in self._forget))
        self._forget = {}
        for seq in plan.leave:
            unknown.pop(seq, None)
        for new in plan.new:
            unknown.pop(new.seq, None)
        again: list[NewSequence] = []
        for seq in [chunk.seq for chunk in plan.chunks if chunk.seq in unknown]:
            stay = stays.get(seq) or unknown[seq]
            assert stay is not None  # it was alive when the steps failed: a chunk of it was planned since
            assert isinstance(stay.request, LlmRequest)  # this machine runs nothing else
            del unknown[seq]
            request = stay.request
            again.append(NewSequence(seq, request.id, request.prompt, tuple(stay.outputs), request.sampling))
        return msgspec.structs.replace(
            plan,
            leave=leave,
            preempt=tuple(seq for seq in plan.preempt if seq not in leave),
            pause=tuple(seq for seq in plan.pause if seq not in leave),
            new=(*plan.new, *again),
        )
