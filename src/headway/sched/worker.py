"""The request flow of an LLM replica: submits, steps in flight, tokens, ends and reports."""

from collections.abc import Sequence
from typing import Final

from headway.core.effects import Effect, RunStep, Send, WakeAt
from headway.core.errors import InvariantError, RequestError
from headway.core.events import StepDone, StepFailed, StepsDone
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.messages import (
    Accepted,
    Cancel,
    Finished,
    Held,
    Holding,
    Refused,
    Submit,
    WhatDoYouHold,
)
from headway.core.plans import StepPlan
from headway.core.request import FinishReason, LlmRequest
from headway.core.units import Ns
from headway.sched.executor.buckets import Buckets, shaped
from headway.sched.executor.protocol import InFlight, PacePolicy
from headway.sched.llm_port import LlmScheduler
from headway.sched.open_steps import Limits as Limits
from headway.sched.open_steps import OpenStep
from headway.sched.reporter import Numbers, Rates, Reporter
from headway.sched.rows import Choir
from headway.sched.stays import Stay, Sums, fold_chunks, fold_rows
from headway.sched.voided import Voided

PLAN_TIMER: Final = TimerId("plan")


class LlmWorker:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(
        self, machine: LlmScheduler, limits: Limits, pace: PacePolicy, buckets: Buckets, reporter: Reporter
    ) -> None:
        self.out: list[Effect] = []
        self.machine, self.reporter, self.rates = machine, reporter, Rates()
        self.stays: dict[int, Stay] = {}
        self.by_request: dict[RequestId, Stay] = {}
        self._choir = Choir()
        self.open: dict[int, OpenStep] = {}
        self.sums = Sums()
        self.is_draining = False
        self._limits, self.pace, self._buckets = limits, pace, buckets
        self.replica = reporter.identity.replica
        self._voided, self._failures = Voided(), 0
        self.last_done = 0  # step
        self._last_done_ns: Ns | None = None
        self._plan_due_ns: Ns | None = None

    # Requests

    def submit(self, front: NodeId, message: Submit, at_ns: Ns) -> None:
        """Take the request as `epoch`, or refuse it. A repeated or older Submit changes nothing."""
        self.reporter.submits_seen[front] = max(message.number, self.reporter.submits_seen.get(front, 0))
        request, epoch = message.request, message.epoch
        held = self.by_request.get(request.id)
        if held is not None and held.epoch >= epoch:
            return
        if held is not None:  # the front has moved on to a newer epoch; the old stay ends without an answer
            self.machine.stop(held.seq, FinishReason.CANCELLED, at_ns)
            self.drop(held)
        if self.is_draining or not isinstance(request, LlmRequest):
            code = "draining" if self.is_draining else "unservable"
            self._refuse(front, message, code, f"{self.replica} takes no such request")
            return
        reason = self._already_complete(request, message.emitted)
        if reason is not None:
            marks = WorkerMarks(self.replica, at_ns, finished_ns=at_ns)
            self.out.append(Send(front, Finished(request.id, epoch, reason, len(message.emitted), marks)))
            return
        try:
            seq = self.machine.add(request, message.emitted, at_ns)
        except RequestError as error:
            self._refuse(front, message, error.code, str(error))
            return
        stay = Stay(request, epoch, front, seq, at_ns)
        stay.outputs.extend(message.emitted)
        self.keep(stay)
        self.out.append(Send(front, Accepted(request.id, epoch)))

    def _already_complete(self, request: LlmRequest, emitted: Sequence[int]) -> FinishReason | None:
        """Resumed after its last token: only the word that it is over was lost."""
        sampling = request.sampling
        if not emitted:
            return None
        if len(emitted) >= sampling.max_tokens:
            return FinishReason.LENGTH
        ends = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids + self._limits.eos_token_ids
        return FinishReason.STOP if emitted[-1] in ends and len(emitted) > sampling.min_tokens else None

    def _refuse(self, front: NodeId, message: Submit, code: str, why: str) -> None:
        self.out.append(Send(front, Refused(message.request.id, message.epoch, code, why)))

    def cancel(self, message: Cancel, at_ns: Ns) -> bool:
        """Stop the request; False when no such epoch is here (then it has ended, and was answered)."""
        stay = self.by_request.get(message.request)
        if stay is None or stay.epoch > message.epoch:
            return False
        if message.if_waiting and (stay.scheduled_ns is not None or stay.outputs):
            return True
        self.machine.keep_output(stay.seq, stay.outputs)
        self.machine.stop(stay.seq, message.reason, at_ns)
        self.finish(stay, message.reason, at_ns)
        return True

    def holding(self, src: NodeId, message: WhatDoYouHold, *, everything: bool) -> None:
        """Answer with what is held for that front, or with everything."""
        held = tuple(
            Held(stay.request.id, stay.epoch, len(stay.outputs), stay.resident_tokens)
            for stay in self.stays.values()
            if everything or stay.front == src
        )
        self.out.append(Send(src, Holding(message.number, held)))

    def orphaned(self, front: NodeId, at_ns: Ns) -> None:
        """The front is gone for good: nobody reads what it asked for."""
        for stay in list(self.stays.values()):
            if stay.front == front:
                self.machine.stop(stay.seq, FinishReason.CANCELLED, at_ns)
                self.drop(stay)

    def keep(self, stay: Stay) -> None:
        """From now on its tokens are sent."""
        self.stays[stay.seq] = stay
        self.by_request[stay.request.id] = stay

    def drop(self, stay: Stay, *, is_told: bool = False) -> None:
        """Forget a stay; `is_told`: its front hears why."""
        self._choir.leave(stay, is_told=is_told)
        del self.stays[stay.seq]
        del self.by_request[stay.request.id]

    def finish(self, stay: Stay, reason: FinishReason, at_ns: Ns, error: str | None = None) -> None:
        """Answer with Finished and forget the stay."""
        self.drop(stay, is_told=True)
        marks = stay.marks(self.replica, self.sums, at_ns)
        message = Finished(stay.request.id, stay.epoch, reason, len(stay.outputs), marks, error)
        self.out.append(Send(stay.front, message))

    # Steps

    def step_done(self, done: StepDone | StepsDone) -> StepPlan | None:
        """Fold in a step: marks, tokens, ends, in this order; return its plan. A voided step is ignored. Those that ran
        ahead have nothing to say."""
        if type(done) is StepsDone:
            self._steps_done(done)
            return None
        assert type(done) is StepDone
        opened = self.open.pop(done.step, None)
        if opened is None:
            return None
        plan, timing = opened.plan, done.timing
        if plan.kind == "dummy":
            return None
        if plan.chunks or plan.join or plan.leave or plan.preempt or plan.pause:
            self._choir.sort_out(plan, self.stays)
            fold_rows(self.stays, plan, opened.planned_ns, self.sums)
            fold_chunks(self.stays, plan, self.sums.fold(plan.tokens, timing))
        else:
            self.sums.fold(plan.decodes, timing)
        step_ns = timing.done_ns - timing.started_ns
        self.rates.step(step_ns, timing.plan_ns)
        self.rates.rows += plan.tokens + timing.padded_rows
        self.rates.padded_rows += timing.padded_rows
        if plan.prefill_tokens or self.machine.waiting:
            self.rates.served(plan.prefill_tokens, step_ns + timing.idle_gap_ns)
        self._choir.emit(done, plan, self.stays, self.out)
        for ended in self.machine.step_done(done, self._outputs):
            stay = self.stays.get(ended.seq)
            if stay is not None:
                self.finish(stay, ended.reason, done.at_ns)
        self._failures = 0
        self.last_done, self._last_done_ns = done.step, done.at_ns
        return plan

    def _steps_done(self, done: StepsDone) -> None:
        """Fold in steps that were run ahead; what is open then is as if each had been planned."""
        last, depth = done.first + len(done.timings) - 1, len(done.planned_ns)
        tokens, fold, learn = self.open[done.first].plan.decodes, self.sums.fold, self.rates.step
        took_ns = []
        for timing in done.timings:
            step_ns = timing.done_ns - timing.started_ns
            took_ns.append(step_ns)
            fold(tokens, timing)
            learn(step_ns, timing.plan_ns)
        self.rates.rows += tokens * len(took_ns)  # of padding, engines that run ahead tell nothing
        for step in range(done.first, last + 1):
            self.open.pop(step, None)
        self._choir.emit_run(done, last, self.out)
        for plan, planned_ns in zip(self.machine.steps_done(last, depth, took_ns), done.planned_ns, strict=True):
            if plan.step not in self.open:
                self.open[plan.step] = OpenStep(shaped(plan, self._buckets), planned_ns)
        self._failures, self.last_done, self._last_done_ns = 0, last, done.at_ns

    def _outputs(self, seq: int) -> Sequence[int]:
        stay = self.stays.get(seq)
        return () if stay is None else stay.outputs

    def step_failed(self, event: StepFailed, proposed: StepPlan | None = None) -> bool:
        """An engine step failed, and what was `proposed` goes with it; after too many in a row the requests are given
        up. False for a step voided before."""
        if event.step not in self.open:
            return False
        self.void(event, proposed)
        self._failures += 1
        if self._failures > self._limits.failures_max:
            for stay in list(self.stays.values()):
                self.machine.stop(stay.seq, FinishReason.LOST, event.at_ns)
                self.finish(stay, FinishReason.LOST, event.at_ns, event.error)
        return True

    def void(self, event: StepFailed, proposed: StepPlan | None) -> None:
        """Every open step is void, and a plan that was never launched too: the machine starts its requests again."""
        plans = [opened.plan for opened in self.open.values() if opened.plan.kind != "dummy"]
        if proposed is not None:
            plans.append(proposed)
        self.open.clear()
        if not plans:
            return
        self._choir.scatter()
        for stay in self.stays.values():
            stay.exit(self.sums, event.at_ns, is_lost=True)
            stay.lost_step = plans[-1].step
        self._voided.fail(plans, self.stays)
        for ended in self.machine.fail(plans[0].step, event.at_ns):
            lost = self.stays.get(ended.seq)
            if lost is not None:
                self.finish(lost, ended.reason, event.at_ns, event.error)

    @property
    def has_credit(self) -> bool:
        """True when one more step may be handed over."""
        return len(self.open) < self._limits.credits

    def pump(self, at_ns: Ns) -> None:
        """Plan while a credit is free, something can run, and the pace says now."""
        while self.has_credit and self.machine.runnable:
            due_ns = at_ns if self.pace.is_prompt else self.pace.plan_at(at_ns, self._in_flight())
            if due_ns > at_ns:
                if self._plan_due_ns is None or self._plan_due_ns <= at_ns or due_ns < self._plan_due_ns:
                    self._plan_due_ns = due_ns
                    self.out.append(WakeAt(due_ns, PLAN_TIMER))
                break
            plan = self.machine.plan(at_ns)
            if plan is None:
                break
            self.launch(plan, at_ns)

    def launch(self, plan: StepPlan, at_ns: Ns) -> None:
        """Hand a plan to the executor."""
        if plan.kind != "dummy":
            plan = shaped(self._voided.amend(plan, self.stays), self._buckets)
        self.open[plan.step] = OpenStep(plan, at_ns)
        for seq in plan.preempt:
            if seq in self.stays:
                self.stays[seq].lost_step = plan.step
        for new in plan.new:
            stay = self.stays.get(new.seq)
            if stay is not None and stay.scheduled_ns is None:
                stay.scheduled_ns = at_ns
        self.out.append(RunStep(plan))

    def _in_flight(self) -> InFlight:
        oldest = next(iter(self.open.values())).planned_ns if self.open else None
        return InFlight(len(self.open), oldest, self._last_done_ns, self.rates.step_ns, self.rates.plan_ns)

    def collect_decisions(self) -> None:
        """Give each decision of the machine to the request it is about, the others to the next report."""
        for decision in self.machine.take_decisions():
            stay = None if decision.request is None else self.by_request.get(decision.request)
            if stay is None:
                self.reporter.decisions.append(decision)
            else:
                stay.decide(decision)

    # Reports

    def report(self, at_ns: Ns) -> None:
        """Report when something changed and the interval is over."""
        if self.reporter.is_early(at_ns):
            return
        numbers = Numbers(self.machine, self.rates, self._limits.kv_blocks, self.is_draining, self.machine)
        self.reporter.report(numbers, at_ns, self.out)

    def check(self) -> None:
        """Raise InvariantError unless stays, credits and the machine agree."""
        if len(self.open) > self._limits.credits:
            raise InvariantError(f"{self.replica}: {len(self.open)} steps in flight, {self._limits.credits} credits")
        if len(self.stays) != len(self.by_request):
            raise InvariantError(f"{self.replica}: {len(self.stays)} stays, {len(self.by_request)} requests")
