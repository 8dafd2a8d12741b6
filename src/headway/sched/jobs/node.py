"""JobNode: which job is claimed next, how long it is held, what becomes of it when its attempt ends.

Several of these may stand before one table. That a job is completed once rests on compare-and-set alone: every write
names its attempt, and the table refuses those of an older one. The lease only decides when somebody else may try.
"""

from typing import Final

from headway.core.effects import WakeAt
from headway.core.events import TimerFired
from headway.core.ids import RequestId, TimerId
from headway.core.job_effects import ClaimRow, ExpireRows, JobEffect, ReadRows, SweepObjects
from headway.core.jobs import (
    DrainBegan,
    HookAnswered,
    HookClaimed,
    HookLost,
    HooksSeen,
    JobEnded,
    JobEvent,
    JobProgressed,
    JobSaved,
    JobStored,
    RowClaimed,
    RowClosed,
    RowKept,
    RowLost,
    RowsKept,
    RowsSeen,
    RowsWatched,
    RowUnknown,
    SaveAsked,
    TableOpened,
)
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.sched.jobs.hooks import Hooks
from headway.sched.jobs.line import Line
from headway.sched.jobs.params import JobParams
from headway.sched.jobs.runs import Runs

TICK: Final = TimerId("jobs:tick")
POLL: Final = TimerId("jobs:poll")
SWEEP: Final = TimerId("jobs:sweep")
_HOUR_NS: Final = 3600 * NS_PER_S
_ROWS_PER_SLOT: Final = 4  # candidates read per job that may run: others take some of them


class JobNode:
    """One per gateway that runs jobs."""

    def __init__(self, params: JobParams, grace_ns: Ns | None = None) -> None:
        """`grace_ns`: how long an orderly end waits for what runs to be saved; None: as long as that takes."""
        self._params = params
        self._out: list[JobEffect] = []
        self._line = Line()
        self._claiming: dict[RequestId, int] = {}  # -> the attempt that it was seen at
        self._unanswered: dict[RequestId, int] = {}  # of those: asked again with the next look
        self.runs = Runs(params, self._out, grace_ns)
        self._hooks = Hooks(params.hooks, self._out)
        self._is_open = False
        self._is_reading = False
        self._is_ticking = False

    def handle(self, event: JobEvent) -> list[JobEffect]:
        """Fold in one event and return what must be done."""
        self._fold(event)
        if self._is_open:
            self._claim(event.at_ns)
        if len(self.runs) and not self._is_ticking:
            self._is_ticking = True
            self._wake(TICK, event.at_ns, self._params.progress_s)
        effects = list(self._out)
        self._out.clear()
        return effects

    def _fold(self, event: JobEvent) -> None:
        match event:
            case TableOpened():
                self._is_open = True
                self._timer(SWEEP, event.at_ns)
                self._timer(POLL, event.at_ns)
            case DrainBegan():
                self._is_open = False
                for job in self._unanswered:
                    del self._claiming[job]  # given back with everything that this process holds
                self._unanswered.clear()
                self.runs.drain()
            case SaveAsked():
                if event.job is not None:
                    self._line.drop(event.job)
                self.runs.hand_back(event.model, event.job)
            case JobStored():
                self._line.store(event.row)
            case RowsSeen():
                self._is_reading = False
                self._line.seen(event.rows)
            case JobProgressed():
                self.runs.progressed(event)
            case JobSaved():
                self.runs.saved(event)
            case JobEnded():
                self.runs.ended(event)
            case RowsWatched():
                self.runs.watched(event)
            case HooksSeen():
                self._hooks.seen(event.rows, event.at_ns)
            case HookClaimed():
                self._hooks.claimed(event)
            case HookLost():
                self._hooks.lost(event.hook)
            case HookAnswered():
                self._hooks.answered(event)
            case TimerFired():
                self._timer(event.timer, event.at_ns)
            case _:
                self._answered(event)

    def _answered(self, event: RowClaimed | RowKept | RowsKept | RowLost | RowClosed | RowUnknown) -> None:
        """The table's answers about rows."""
        if not (isinstance(event, RowUnknown) or (isinstance(event, RowsKept) and event.unknown)):
            self.runs.answered()
        match event:
            case RowClaimed():
                self._settled(event.row.job)
                self.runs.begin(event)
            case RowKept():
                self.runs.kept(event)
            case RowsKept():
                for job, _ in event.lost:
                    self._line.drop(job)
                self.runs.all_kept(event)
            case RowLost():
                if self._claiming.get(event.job) == event.attempt:
                    self._settled(event.job)
                self._line.drop(event.job)
                self.runs.lost(event.job, event.attempt)
            case RowClosed():
                self.runs.closed(event.job, event.attempt)
                if self._is_open:
                    self._hooks.read()
            case RowUnknown():
                if self._claiming.get(event.job) != event.attempt:
                    self.runs.unknown(event.job, event.attempt)
                elif self._is_open:
                    self._unanswered[event.job] = event.attempt
                else:
                    del self._claiming[event.job]

    def _settled(self, job: RequestId) -> None:
        """Its claim has its answer, also where that of an earlier write was taken for it before."""
        self._claiming.pop(job, None)
        self._unanswered.pop(job, None)

    def _claim(self, at_ns: Ns) -> None:
        """Fill the free places with the first rows of the line; read the table where that is empty."""
        while len(self.runs) + len(self._claiming) < self._params.running_max:
            row = self._line.take(at_ns)
            if row is None:
                return
            if row.job in self._claiming or self.runs.has(row.job):
                continue  # the read is older than our claim
            self._claiming[row.job] = row.attempt
            self._out.append(ClaimRow(row.job, row.attempt, at_ns + self.runs.lease_ns))

    def _timer(self, timer: TimerId, at_ns: Ns) -> None:
        if timer == TICK:
            self._is_ticking = False
            self.runs.tick(at_ns)
        elif timer == POLL and self._is_open:
            for job, attempt in self._unanswered.items():  # it may be ours: nobody else begins it then
                self._out.append(ClaimRow(job, attempt, at_ns + self.runs.lease_ns))
            self._unanswered.clear()
            self._read()
            self._hooks.poll()
            self._wake(POLL, at_ns, self._params.poll_s)
        elif timer == SWEEP and self._is_open:
            self._out.append(ExpireRows(at_ns - round(self._params.wait_hours_max * _HOUR_NS)))
            self._out.append(SweepObjects())
            self._wake(SWEEP, at_ns, self._params.sweep_s)

    def _read(self) -> None:
        if self._is_reading or len(self.runs) + len(self._claiming) >= self._params.running_max:
            return
        self._is_reading = True
        self._line.read_begins()
        self._out.append(ReadRows(self._params.running_max * _ROWS_PER_SLOT))

    def _wake(self, timer: TimerId, at_ns: Ns, seconds: float) -> None:
        self._out.append(WakeAt(at_ns + ns_from_s(seconds), timer))

    @property
    def is_idle(self) -> bool:
        """Nothing runs, is claimed or is sent here."""
        return not (len(self.runs) or self._claiming or len(self._hooks))
