"""The jobs that this node has claimed: heartbeat and progress, checkpoints, and what follows from how they end."""

from typing import Final, Literal

from headway.core.errors import InvariantError
from headway.core.ids import ModelId, RequestId
from headway.core.job_effects import (
    CompleteRow,
    FailRow,
    JobEffect,
    KeepRow,
    KeepRows,
    RequeueRow,
    SaveCheckpoint,
    SpareRow,
    StartJob,
    StopJob,
    WatchRows,
)
from headway.core.jobs import (
    JobEnded,
    JobProgressed,
    JobRow,
    JobSaved,
    JobState,
    Outcome,
    RowClaimed,
    RowKept,
    RowsKept,
    RowsWatched,
)
from headway.core.units import Ns, ns_from_s
from headway.sched.jobs.cadence import Cadence
from headway.sched.jobs.params import JobParams

_End = CompleteRow | FailRow | RequeueRow | SpareRow
_HELD: Final = ("running", "handing")  # phases in which the row is ours, and what is new of it is written


class _Run:
    """One claimed job.

    `running`: until its JobEnded. `stopping`: it was asked to stop, and the row is not ours any more. `handing`: it
    was asked to stop, and the row goes back into the line. `closing`: its end is being written.
    """

    def __init__(self, row: JobRow, until_ns: Ns, written_ns: Ns) -> None:
        self.row, self.until_ns = row, until_ns
        self.phase: Literal["running", "stopping", "handing", "closing"] = "running"
        self.state: JobState = "preempted" if row.begun else "queued"
        self.done = row.begun
        self.failures = row.failures + 1  # this one, once it has begun
        self.is_new = False  # something to write beside the heartbeat
        self.written_ns = written_ns
        self.is_asking = False  # a heartbeat is on its way
        self.is_unanswered = False  # the table did not answer to the last write
        self.stepped_ns: Ns | None = None  # the last progress came then
        self.end: _End | None = None
        self.repeats = False  # the table did not answer to `end`


class Runs:
    """Appends to `out`."""

    def __init__(self, params: JobParams, out: list[JobEffect], grace_ns: Ns | None = None) -> None:
        self._params, self._out = params, out
        self.lease_ns = ns_from_s(params.lease_s)
        self._progress_ns = ns_from_s(params.progress_s)
        self._runs: dict[RequestId, _Run] = {}
        self._is_draining = False
        self._is_watching = False
        self._silent_ns: Ns = 0  # since the table last answered, in ticks
        self.cadence = Cadence(params.checkpoint, grace_ns)

    def __len__(self) -> int:
        return len(self._runs)

    def has(self, job: RequestId) -> bool:
        """It is claimed by this node, or still being stopped here."""
        return job in self._runs

    def begin(self, event: RowClaimed) -> None:
        """The row is ours. Said twice where the claim was asked again for an answer that was not to it: the end of an
        attempt and the claim of the next one name the same number."""
        row = event.row
        if self._find(row.job, row.attempt) is not None:
            return
        if row.job in self._runs:
            raise InvariantError(f"job {row.job} is claimed as attempt {row.attempt} while it is still held here")
        # The claim may have waited at the table: its lease did not.
        run = self._runs[row.job] = _Run(row, event.until_ns, event.until_ns - self.lease_ns)
        if self._is_draining:
            self._write(run, RequeueRow(row.job, row.attempt, event.at_ns, True, "the gateway ends"))
        elif row.failures >= self._params.attempts_max:
            story = f"job {row.job} was begun {row.failures} times and came to no checkpoint and no end; retry it"
            least = self._params.attempts_max + 1
            self._write(run, FailRow(row.job, row.attempt, "lost", "lost", story, row.device_ns, least))
        else:
            self._out.append(StartJob(row, self.cadence.every(row)))

    def drain(self) -> None:
        """Begin nothing more, and hand back what runs."""
        self._is_draining = True
        self.hand_back(None)

    def hand_back(self, model: ModelId | None, job: RequestId | None = None) -> None:
        """Stop what runs of them, None: of all, saved as far as it has come, and put it back into the line."""
        for run in self._runs.values():
            if run.phase == "running" and model in (None, run.row.model) and job in (None, run.row.job):
                run.phase = "handing"
                self._out.append(StopJob(run.row.job, run.row.attempt, saves=True))

    def watched(self, event: RowsWatched) -> None:
        """Clients and operators spoke at another gateway of the same table."""
        self._is_watching = False
        for job, attempt in event.lost:
            self.lost(job, attempt)
        for job, attempt in event.saves:
            if self._find(job, attempt) is not None:
                self.hand_back(None, job)

    def _find(self, job: RequestId, attempt: int) -> _Run | None:
        run = self._runs.get(job)
        return run if run is not None and run.row.attempt == attempt else None

    def progressed(self, event: JobProgressed) -> None:
        """Kept for the next tick; steps teach what a step takes."""
        run = self._find(event.job, event.attempt)
        if run is None or run.phase not in _HELD:
            return
        steps = event.done - run.done
        if steps > 0 and run.stepped_ns is not None:
            self.cadence.stepped(run.row.model, (event.at_ns - run.stepped_ns) // steps)
        if steps > 0:
            run.stepped_ns = event.at_ns
        run.is_new = run.is_new or (event.state, event.done) != (run.state, run.done)
        run.state, run.done = event.state, max(run.done, event.done)

    def saved(self, event: JobSaved) -> None:
        """The table may know of the checkpoint."""
        run = self._find(event.job, event.attempt)
        if run is None or run.phase not in _HELD:
            return
        self.cadence.saved(run.row.model, event.took_ns)
        run.failures = 1  # this attempt, since its checkpoint
        until_ns, device_ns = event.at_ns + self.lease_ns, run.row.device_ns + event.device_ns
        self._out.append(SaveCheckpoint(event.job, event.attempt, until_ns, event.done, event.key, device_ns))

    def kept(self, event: RowKept) -> None:
        """The checkpoint is written."""
        self._kept(event.job, event.attempt, event.until_ns)

    def _kept(self, job: RequestId, attempt: int, until_ns: Ns) -> None:
        run = self._find(job, attempt)
        if run is not None:
            run.until_ns = max(run.until_ns, until_ns)
            run.is_asking, run.is_unanswered = False, False

    def all_kept(self, event: RowsKept) -> None:
        """What became of a round of heartbeats."""
        for row in event.kept:
            self._kept(*row, event.until_ns)
        for row in event.lost:
            self.lost(*row)
        for row in event.unknown:
            self.unknown(*row)

    def tick(self, at_ns: Ns) -> None:
        """Write progress and heartbeats; stop what could not be kept; repeat ends that were not answered; look at what
        others did to these rows."""
        self._silent_ns += self._progress_ns
        for run in list(self._runs.values()):
            if run.phase == "closing" and run.repeats and run.end is not None:
                run.repeats = False
                self._out.append(run.end)
        self._keep(at_ns)
        running = tuple((run.row.job, run.row.attempt) for run in self._runs.values() if run.phase in _HELD)
        if running and not self._is_watching:
            self._is_watching = True
            self._out.append(WatchRows(running))

    def _keep(self, at_ns: Ns) -> None:
        """A lease that is over says that this process or the table was slow, not that somebody took the row: that is
        asked. Stopped is what the table does not answer about. Its silence is counted in ticks, for no answer is heard
        while this process stands still.

        Where one heartbeat is due all go, for a transaction costs about the same whatever is in it.
        """
        asked: list[_Run] = []
        is_due = False
        for run in self._runs.values():
            if run.phase not in _HELD:
                continue
            is_over = at_ns >= run.until_ns
            if is_over and (run.is_unanswered or self._silent_ns > self.lease_ns):
                self._stop(run)
            elif not run.is_asking:
                asked.append(run)
                is_due = is_due or is_over or run.is_new or at_ns - run.written_ns >= self.lease_ns // 3
        if is_due:
            for run in asked:
                run.is_asking, run.is_new, run.written_ns = True, False, at_ns
            rows = tuple(KeepRow(run.row.job, run.row.attempt, run.state, run.done) for run in asked)
            self._out.append(KeepRows(rows, at_ns + self.lease_ns))

    def _stop(self, run: _Run) -> None:
        was_asked = run.phase == "handing"
        run.phase = "stopping"
        if not was_asked:
            self._out.append(StopJob(run.row.job, run.row.attempt))

    def answered(self) -> None:
        """The table is there, if slow."""
        self._silent_ns = 0

    def lost(self, job: RequestId, attempt: int) -> None:
        """The row is not ours."""
        run = self._find(job, attempt)
        if run is None:
            return
        if run.phase in _HELD:
            self._stop(run)
        elif isinstance(run.end, CompleteRow) or (isinstance(run.end, RequeueRow) and run.end.spares):
            self._spare(run)
        elif run.phase == "closing" and not isinstance(run.end, SpareRow):  # it says so of a heartbeat before it
            del self._runs[job]

    def closed(self, job: RequestId, attempt: int) -> None:
        """Its end is in the table."""
        if self._find(job, attempt) is not None:
            del self._runs[job]

    def unknown(self, job: RequestId, attempt: int) -> None:
        """An end is written again; a heartbeat comes again by itself."""
        run = self._find(job, attempt)
        if run is None:
            return
        if run.phase == "closing":
            run.repeats = True
        run.is_asking, run.is_unanswered = False, True

    def ended(self, event: JobEnded) -> None:
        """What ran here is over: write what that means, if the row is still ours."""
        run = self._find(event.job, event.attempt)
        if run is None or run.phase == "closing":
            raise InvariantError(f"job {event.job} ends as attempt {event.attempt}, which does not run here")
        if run.phase == "stopping":
            self._spare(run)
            return
        self._write(run, self._end(run, event.outcome, event.at_ns))

    def _write(self, run: _Run, end: _End) -> None:
        run.phase, run.end = "closing", end
        self._out.append(end)

    def _spare(self, run: _Run) -> None:
        """Slowness is no failure: what was claimed is not held against the job."""
        self._write(run, SpareRow(run.row.job, run.row.attempt))

    def _end(self, run: _Run, outcome: Outcome, at_ns: Ns) -> _End:
        row, code = run.row, outcome.code
        device_ns = row.device_ns + outcome.device_ns
        if outcome.kind == "completed":
            return CompleteRow(row.job, row.attempt, device_ns, outcome.images, outcome.frames)
        if outcome.kind == "failed":
            return FailRow(row.job, row.attempt, "failed", code, outcome.message, device_ns)
        reason = f"{code}: {outcome.message}" if code else outcome.message
        if outcome.kind == "unfit":
            return self._anew(run, reason, at_ns)
        backoff = self._params.backoff
        if outcome.kind in ("interrupted", "refused"):  # nobody's fault: it costs no attempt
            is_asked = run.phase == "handing"
            wait_ns = 0 if is_asked else max(outcome.retry_after_ns, backoff.wait_ns(row.job, max(1, run.failures)))
            return RequeueRow(row.job, row.attempt, at_ns + wait_ns, True, reason)
        if run.failures >= self._params.attempts_max:
            most = self._params.attempts_max
            story = f"attempt {run.failures} of jobs.attempts_max = {most}: {reason}"
            return FailRow(row.job, row.attempt, "lost", "lost", story, device_ns, most)
        return RequeueRow(row.job, row.attempt, at_ns + backoff.wait_ns(row.job, run.failures), False, reason)

    def _anew(self, run: _Run, reason: str, at_ns: Ns) -> _End:
        """From step 0, and nobody's failure; a job whose checkpoints never fit is given up all the same."""
        row, most = run.row, self._params.attempts_max
        if row.restarts >= most:
            story = f"job {row.job} began anew {row.restarts} times (jobs.attempts_max = {most}): {reason}; retry it"
            return FailRow(row.job, row.attempt, "lost", "lost", story)
        return RequeueRow(row.job, row.attempt, at_ns, True, reason, forgets=True)
