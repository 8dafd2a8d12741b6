"""The request flow of a diffusion replica: submits, denoise plans, progress, ends and reports."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from headway.core.artifacts import CARRIED_BYTES_MAX, TOO_LARGE, RowFailed, RowMade
from headway.core.effects import Effect, Restart, RunDenoise, Send
from headway.core.errors import RequestError
from headway.core.events import DenoiseDone, StepFailed
from headway.core.ids import NodeId, RequestId
from headway.core.messages import (
    Accepted,
    Artifacts,
    Cancel,
    Finished,
    Held,
    Holding,
    Progress,
    Refused,
    Submit,
    WhatDoYouHold,
)
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import Ns, s_from_ns
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.numbers import DiffusionNumbers
from headway.sched.diffusion.warming import Stock
from headway.sched.reporter import Numbers, Rates, Reporter
from headway.sched.reshaping import Reshaping
from headway.sched.sitting import Sitting
from headway.sched.stays import Sums
from headway.sched.step_watch import StepWatch

_RESULTS: Final = ("picture", "video", "latents")  # without which a row is not complete
ENGINE_FAILED: Final = "engine_failed"  # code of rows whose plan failed as a whole


class DiffusionWorker:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(self, machine: DiffusionMachine, reporter: Reporter, stock: Stock) -> None:
        self.out: list[Effect] = []
        self.reshaping = Reshaping(machine, stock, reporter.changed, self.out)
        self.machine, self.reporter, self.rates = machine, reporter, Rates()
        self.numbers = DiffusionNumbers(machine)
        self.is_draining = False
        self._stays: dict[int, Sitting] = {}
        self._by_request: dict[RequestId, Sitting] = {}
        self._sums, self._watch = Sums(), StepWatch()
        self._replica = reporter.identity.replica

    def submit(self, front: NodeId, message: Submit, at_ns: Ns) -> None:
        """Take the request as `epoch`, or refuse it. A repeated or older Submit changes nothing."""
        self.reporter.submits_seen[front] = max(message.number, self.reporter.submits_seen.get(front, 0))
        request, epoch = message.request, message.epoch
        held = self._by_request.get(request.id)
        if held is not None and held.epoch >= epoch:
            return
        if held is not None:  # the front has moved on to a newer epoch; the old stay ends without an answer
            self._drop(held)
        is_leaving = self.is_draining or self.reshaping.is_preparing
        if isinstance(request, DiffusionRequest):
            is_leaving = is_leaving or self.reshaping.was_for(request)
        if is_leaving or not isinstance(request, DiffusionRequest):
            code = "draining" if is_leaving else "unservable"
            self.out.append(Send(front, Refused(request.id, epoch, code, f"{self._replica} takes no such request")))
            return
        try:
            seq = self.machine.add(request)
        except RequestError as error:
            self.out.append(Send(front, Refused(request.id, epoch, error.code, str(error))))
            return
        stay = Sitting(request, epoch, front, seq, at_ns)
        stay.is_cold = self.machine.preparing.waits(seq)
        self._stays[seq] = self._by_request[request.id] = stay
        self.out.append(Send(front, Accepted(request.id, epoch)))

    def cancel(self, message: Cancel, at_ns: Ns) -> None:
        """Stop the request. One that is to be saved goes with its checkpoint; one whose step is under way is over with
        that, for the device goes on with it (SPEC H6)."""
        stay = self._by_request.get(message.request)
        if stay is None or stay.epoch > message.epoch:
            return
        if message.saves and stay.ends is None and (stay.has_gone_on or self.machine.runs(stay.seq)):
            self.machine.save_next(stay.seq)
            stay.leave()
        elif stay.ends is not None or self._is_under_way(stay):
            stay.ends = stay.ends or message.reason
            self.machine.stop(stay.seq)
        else:  # nothing was computed here that a checkpoint would keep
            self._finish(stay, message.reason, at_ns)

    @property
    def is_idle(self) -> bool:
        """Every front has heard of the end of all that it sent, those included whose last step still ran."""
        return not self._stays

    def _is_under_way(self, stay: Sitting) -> bool:
        """One of its plans is open; a slice of a preparation between two of them is not."""
        machine = self.machine
        return machine.has_open and not machine.preparing.is_open and machine.runs(stay.seq)

    def holding(self, src: NodeId, message: WhatDoYouHold) -> None:
        """Answer with what is held for that front."""
        held = tuple(Held(stay.request.id, stay.epoch, 0) for stay in self._stays.values() if stay.front == src)
        self.out.append(Send(src, Holding(message.number, held)))

    def orphaned(self, front: NodeId) -> None:
        """Nobody reads what a lost front asked for."""
        for stay in list(self._stays.values()):
            if stay.front == front:
                self._drop(stay)

    def step_done(self, event: DenoiseDone) -> None:
        """Tell fronts of progress, of what was made, and of ends."""
        if event.step < 0:  # nobody asked for it
            self._watch.end()
            self.reshaping.done(event)
            return
        timing, rows_run = event.timing, self.machine.open_rows
        self.machine.holdings.caches(event.cached_bytes)
        self.numbers.encoded(event.stages)
        self._watch.end()
        took_ns = timing.done_ns - timing.started_ns
        asked_for = [row for row in event.made if row.seq in self._stays]
        failed = {failure.seq: failure for failure in (*event.failed, *_too_large(asked_for))}
        made = {row.seq: row.made for row in event.made}
        saved = {seq: one.body for seq, things in made.items() for one in things if one.kind == "checkpoint"}
        is_slice = self.machine.preparing.is_open
        rows = self.machine.done(event.step, took_ns, failed, saved, event.stages)
        if is_slice:
            self._prepared(failed, event.at_ns)
            return
        self._told_idle()
        self.rates.step(took_ns, timing.plan_ns)
        self._sums.fold(rows_run, timing)  # a row that nobody wants any more pays for itself
        self._ended(event.at_ns)
        for failure in failed.values():
            if failure.seq in self._stays:
                self._fail(self._stays[failure.seq], failure, event.at_ns)
        for row in rows:
            stay = self._stays[row.seq]
            stay.did(row.start + row.count, event.stages)
            self.out.append(Send(stay.front, Progress(stay.request.id, stay.epoch, stay.done, row.total)))
            for thing in stay.told_of(made.get(row.seq, ())):  # one a message: ten large pictures fill no frame
                self.out.append(Send(stay.front, Artifacts(stay.request.id, stay.epoch, (thing,))))
            if stay.done == row.total:
                self._finish(stay, FinishReason.STOP, event.at_ns)
            elif stay.is_leaving and any(one.kind == "checkpoint" for one in made.get(row.seq, ())):
                self._finish(stay, FinishReason.CANCELLED, event.at_ns)

    def _prepared(self, failed: Mapping[int, RowFailed], at_ns: Ns) -> None:
        """A slice of a preparation is over. Where it failed, those that wait for it would fail as well."""
        self.reporter.changed()
        for failure in failed.values():
            self.machine.preparing.unprepared.because(failure.message)
        for seq, preparation in self.machine.preparing.take_failed():
            stay, failure = self._stays[seq], failed[preparation]
            words = f"preparing {stay.request_size} for request {stay.request.id} failed: {failure.message}"
            self._fail(stay, replace(failure, seq=seq, message=words), at_ns)

    def step_failed(self, event: StepFailed) -> None:
        """The engine failed and holds nothing any more: other replicas go on with its requests."""
        self._watch.end()
        if event.step < 0:
            self.reshaping.failed(event.at_ns, event.error)
            return
        self._ended(event.at_ns)
        for seq in self.machine.fail(event.step):
            self._finish(self._stays[seq], FinishReason.LOST, event.at_ns, event.error)
        self.machine.preparing.unprepared.because(event.error)
        self.reporter.changed()

    def _ended(self, at_ns: Ns) -> None:
        """The step is over that they were stopped in."""
        for stay in [stay for stay in self._stays.values() if stay.ends is not None]:
            self._finish(stay, FinishReason.CANCELLED, at_ns)

    def _told_idle(self) -> None:
        """What the last plan held is free. Where its rows were cancelled, nothing else of the report is new."""
        if not self.machine.running and not self.machine.waiting:
            self.reporter.changed()

    def pump(self, at_ns: Ns) -> None:
        """Hand the next denoise plan to the executor when none is open."""
        if self.reshaping.is_moving:
            before = len(self.out)
            patience_ns = self.reshaping.pump(at_ns)
            if len(self.out) > before and self.reshaping.is_preparing:
                self._watch.begin(patience_ns, at_ns, self.out)
            if self.reshaping.is_preparing:
                return
        self.machine.preparing.only_for_requests = self.is_draining or self.reshaping.is_moving
        plan = self.machine.plan(at_ns)
        if plan is None:
            return
        for seq in self.machine.take_interrupted():
            self._stays[seq].interrupt(self._sums, at_ns)
        for stay in (self._stays[row.seq] for row in plan.rows if row.seq in self._stays):
            stay.enter(self._sums, at_ns)
            if stay.scheduled_ns is None:
                stay.scheduled_ns = at_ns
            stay.is_cold = stay.is_cold or plan.is_cold
        self.out.append(RunDenoise(plan))
        self._watch.begin(self.machine.patience_ns(), at_ns, self.out)

    def look(self, at_ns: Ns) -> None:
        """The watchdog's timer: a plan that has taken far too long will never end (ComfyUI#3670). Its process is ended;
        all that is here goes on elsewhere."""
        since_ns = self._watch.look(at_ns, self.out)
        if since_ns is None:
            return
        why = f"{self._replica}: denoise plan {self.machine.steps} has run for {s_from_ns(at_ns - since_ns):.0f} s"
        self.is_draining = True
        for stay in list(self._stays.values()):
            self._finish(stay, FinishReason.LOST, at_ns, why)
        self.out.append(Restart(f"{why}; its engine is stuck"))

    def collect_decisions(self) -> None:
        """Give each decision of the machine to the request it is about; what is about none goes with the report."""
        for decision in self.machine.take_decisions():
            if decision.request is None:
                self.reporter.decisions.append(decision)
            stay = None if decision.request is None else self._by_request.get(decision.request)
            if stay is not None:
                stay.decide(decision)

    def report(self, at_ns: Ns) -> None:
        """Report when something changed and the interval is over."""
        if self.reporter.is_early(at_ns):
            return  # what it would tell is not put together for nothing
        machine, is_leaving = self.machine, self.is_draining or self.reshaping.is_moving
        warmth = machine.warmth
        numbers = Numbers(
            self.numbers,
            self.rates,
            0,
            is_leaving,
            denoise=machine,
            memory=machine.holdings.memory,
            warm=warmth.told,
            refuses_new=warmth.refuses_new,
            preparing=machine.preparing.told(),
            unprepared=machine.preparing.unprepared.told(warmth.is_warm),
        )
        self.reporter.report(numbers, at_ns, self.out)

    def _fail(self, stay: Sitting, failure: RowFailed, at_ns: Ns) -> None:
        """A fault of the engine is another replica's chance; one of the request would be the same everywhere."""
        is_engine = failure.code == ENGINE_FAILED
        reason = FinishReason.LOST if is_engine else FinishReason.REJECTED
        self._finish(stay, reason, at_ns, failure.message, None if is_engine else failure.code)

    def _finish(
        self, stay: Sitting, reason: FinishReason, at_ns: Ns, error: str | None = None, code: str | None = None
    ) -> None:
        self._drop(stay)
        reason = stay.ends or reason
        if stay.is_interrupted:  # it ends while it waits: that time is over too
            stay.enter(self._sums, at_ns)
        cost = self.machine.denoise_cost
        marks = stay.sat(stay.marks(self._replica, self._sums, at_ns), 1 if cost is None else cost.devices)
        self.out.append(Send(stay.front, Finished(stay.request.id, stay.epoch, reason, 0, marks, error, code=code)))

    def _drop(self, stay: Sitting) -> None:
        self.machine.stop(stay.seq)
        del self._stays[stay.seq], self._by_request[stay.request.id]


def _too_large(made: Sequence[RowMade]) -> list[RowFailed]:
    """Rows whose picture, video or latents no message carries."""
    found: list[RowFailed] = []
    for row in made:
        size = max((len(one.body) for one in row.made if one.kind in _RESULTS), default=0)
        if size > CARRIED_BYTES_MAX:
            why = f"its result has {size} bytes, the limit is {CARRIED_BYTES_MAX}; ask for fewer pixels or frames"
            found.append(RowFailed(row.seq, TOO_LARGE, why))
    return found
