"""The request flow of a diffusion replica: submits, denoise plans, progress, ends and reports."""

from msgspec.structs import replace

from headway.core.effects import Effect, RunDenoise, Send
from headway.core.errors import RequestError
from headway.core.events import DenoiseDone
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Accepted, Cancel, Finished, Held, Holding, Progress, Refused, Submit, WhatDoYouHold
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import Ns
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.numbers import DiffusionNumbers
from headway.sched.reporter import Numbers, Rates, Reporter
from headway.sched.stays import Stay, Sums


class DiffusionWorker:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(self, machine: DiffusionMachine, reporter: Reporter) -> None:
        self.out: list[Effect] = []
        self.machine, self.reporter, self.rates = machine, reporter, Rates()
        self.numbers = DiffusionNumbers(machine)
        self.is_draining = False
        self._stays: dict[int, Stay] = {}
        self._by_request: dict[RequestId, Stay] = {}
        self._sums = Sums()
        self._replica = reporter.identity.replica

    def submit(self, front: NodeId, message: Submit, at_ns: Ns) -> None:
        """Take the request as `epoch`, or refuse it. A repeated or older Submit changes nothing."""
        self.reporter.submits_seen[front] = max(message.number, self.reporter.submits_seen.get(front, 0))
        request, epoch = message.request, message.epoch
        held = self._by_request.get(request.id)
        if held is not None and held.epoch >= epoch:
            return
        if held is not None:
            self._drop(held)
        if self.is_draining or not isinstance(request, DiffusionRequest):
            code = "draining" if self.is_draining else "unservable"
            self.out.append(Send(front, Refused(request.id, epoch, code, f"{self._replica} takes no such request")))
            return
        try:
            seq = self.machine.add(request)
        except RequestError as error:
            self.out.append(Send(front, Refused(request.id, epoch, error.code or "unservable", str(error))))
            return
        stay = Stay(request, epoch, front, seq, at_ns)
        self._stays[seq] = self._by_request[request.id] = stay
        self.out.append(Send(front, Accepted(request.id, epoch)))

    def cancel(self, message: Cancel, at_ns: Ns) -> None:
        """Stop the request; the open denoise step ends without it."""
        stay = self._by_request.get(message.request)
        if stay is not None and stay.epoch <= message.epoch:
            self._finish(stay, message.reason, at_ns)

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
        """Tell fronts of progress and of ends."""
        timing = event.timing
        self.rates.step(timing.done_ns - timing.started_ns, timing.plan_ns)
        rows = self.machine.done(event.step, timing.done_ns - timing.started_ns)
        for row in rows:
            self._stays[row.seq].enter(self._sums, event.at_ns)
        self._sums.fold(len(rows), timing)
        for row in rows:
            stay, done = self._stays[row.seq], row.start + row.count
            self.out.append(Send(stay.front, Progress(stay.request.id, stay.epoch, done, row.total)))
            if done == row.total:
                self._finish(stay, FinishReason.STOP, event.at_ns)

    def pump(self, at_ns: Ns) -> None:
        """Hand the next denoise plan to the executor when none is open."""
        plan = self.machine.plan(at_ns)
        if plan is None:
            return
        for row in plan.rows:
            stay = self._stays[row.seq]
            if stay.scheduled_ns is None:
                stay.scheduled_ns = at_ns
        self.out.append(RunDenoise(plan))

    def collect_decisions(self) -> None:
        """Give each decision of the machine to the request it is about."""
        for decision in self.machine.take_decisions():
            stay = None if decision.request is None else self._by_request.get(decision.request)
            if stay is not None:
                stay.decide(decision)

    def report(self, at_ns: Ns) -> None:
        """Report when something changed and the interval is over."""
        numbers = Numbers(self.numbers, self.rates, 0, self.is_draining, denoise=self.machine)
        self.reporter.report(numbers, at_ns, self.out)

    def _finish(self, stay: Stay, reason: FinishReason, at_ns: Ns) -> None:
        self._drop(stay)
        marks = stay.marks(self._replica, self._sums, at_ns)
        if stay.scheduled_ns is not None:
            marks = replace(marks, denoised_ns=at_ns)
        self.out.append(Send(stay.front, Finished(stay.request.id, stay.epoch, reason, 0, marks)))

    def _drop(self, stay: Stay) -> None:
        self.machine.stop(stay.seq)
        del self._stays[stay.seq], self._by_request[stay.request.id]
