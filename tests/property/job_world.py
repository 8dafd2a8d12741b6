"""JobNodes, a job table and engines in one box: every order of what happens can be tried, with crashes between.

`MemoryTable` says what the SQL tables must do as well (`tests/integration/test_job_table.py` compares them).
"""

import random
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from headway.core.effects import WakeAt
from headway.core.events import TimerFired
from headway.core.ids import ModelId, RequestId, TenantId, TimerId
from headway.core.job_effects import (
    ClaimRow,
    CompleteRow,
    ExpireRows,
    FailRow,
    JobEffect,
    KeepRows,
    ReadHooks,
    ReadRows,
    RequeueRow,
    SaveCheckpoint,
    SpareRow,
    StartJob,
    StopJob,
    WatchRows,
)
from headway.core.jobs import (
    OVER,
    WAITING,
    HooksSeen,
    JobEnded,
    JobEvent,
    JobProgressed,
    JobRow,
    JobSaved,
    JobState,
    JobStored,
    Outcome,
    RowClaimed,
    RowClosed,
    RowKept,
    RowLost,
    RowsKept,
    RowsSeen,
    RowsWatched,
    RowUnknown,
    TableOpened,
)
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.sched.jobs.node import JobNode
from headway.sched.jobs.params import BackoffParams, JobParams
from headway.sched.jobs.turns import Turns


class BeginRow(msgspec.Struct, frozen=True):
    """What the edge writes before it begins what a StartJob says."""

    job: RequestId
    attempt: int


RowEffect = ClaimRow | SaveCheckpoint | CompleteRow | FailRow | RequeueRow | SpareRow | BeginRow


class Stored:
    """One row, with what decisions do not see."""

    def __init__(self, row: JobRow) -> None:
        self.row = row
        self.state: JobState = "queued"
        self.done = 0
        self.counted: set[int] = set()  # attempts that count as failures
        self.owner: str | None = None
        self.until_ns: Ns = 0
        self.is_paused = False
        self.key: str | None = None
        self.completions = 0
        self.has_begun = False

    def count(self, attempts: set[int]) -> None:
        """These are the failures from now on."""
        self.counted = attempts
        self.row = msgspec.structs.replace(self.row, failures=len(attempts))


class MemoryTable:
    """The job table's semantics in a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[RequestId, Stored] = {}
        self.is_held = False
        self._last_position = 0

    def insert(self, row: JobRow) -> JobRow:
        self._last_position += 1
        row = msgspec.structs.replace(row, position=self._last_position)
        self.rows[row.job] = Stored(row)
        return row

    def _is_free(self, stored: Stored, now_ns: Ns) -> bool:
        if self.is_held or stored.state in OVER or stored.is_paused or stored.row.not_before_ns > now_ns:
            return False
        return stored.owner is None or stored.until_ns < now_ns

    def claimable(self, limit: int, now_ns: Ns) -> tuple[list[JobRow], bool]:
        free = [stored.row for stored in self.rows.values() if self._is_free(stored, now_ns)]
        free.sort(key=lambda row: (-row.urgency, row.position))
        return free[:limit], len(free) > limit

    def claim(self, effect: ClaimRow, owner: str, now_ns: Ns) -> JobRow | None:
        stored = self.rows.get(effect.job)
        if stored is None:
            return None
        if not self._is_free(stored, now_ns) or stored.row.attempt != effect.attempt:
            mine = self._owned(effect.job, effect.attempt + 1, owner)  # asked again
            if mine is not None:
                mine.until_ns = effect.until_ns
            return None if mine is None else mine.row
        row = stored.row
        stored.row = msgspec.structs.replace(row, attempt=row.attempt + 1)
        stored.owner, stored.until_ns = owner, effect.until_ns
        return stored.row

    def begin(self, job: RequestId, attempt: int, owner: str) -> bool:
        stored = self._owned(job, attempt, owner)
        if stored is not None:
            stored.count(stored.counted | {attempt})
        return stored is not None

    def _owned(self, job: RequestId, attempt: int, owner: str) -> Stored | None:
        stored = self.rows.get(job)
        if stored is None or stored.owner != owner or stored.row.attempt != attempt or stored.state in OVER:
            return None
        return stored

    def keep(self, effect: KeepRows, owner: str) -> list[tuple[RequestId, int]]:
        lost = []
        for row in effect.rows:
            stored = self._owned(row.job, row.attempt, owner)
            if stored is None:
                lost.append((row.job, row.attempt))
                continue
            stored.until_ns, stored.state = effect.until_ns, row.state
            stored.done = max(stored.done, row.done)
            stored.has_begun = stored.has_begun or row.done > 0
        return lost

    def checkpoint(self, effect: SaveCheckpoint, owner: str) -> bool:
        stored = self._owned(effect.job, effect.attempt, owner)
        if stored is not None:
            stored.until_ns, stored.key, stored.done = effect.until_ns, effect.key, max(stored.done, effect.done)
            stored.row = msgspec.structs.replace(stored.row, begun=effect.done, device_ns=effect.device_ns)
            stored.count({effect.attempt})
            stored.has_begun = True
            if stored.is_paused:
                stored.owner, stored.state = None, "preempted"
                stored.count(set())
                return False
        return stored is not None

    def watch(self, effect: WatchRows, owner: str) -> RowsWatched:
        held = [(row, self._owned(*row, owner)) for row in effect.rows]
        lost = tuple(row for row, stored in held if stored is None)
        return RowsWatched(0, "table", lost, tuple(row for row, stored in held if stored and stored.is_paused))

    def complete(self, effect: CompleteRow, owner: str) -> bool:
        stored = self._owned(effect.job, effect.attempt, owner)
        if stored is not None:
            stored.state, stored.owner, stored.done = "completed", None, stored.row.steps
            stored.completions += 1
        return stored is not None

    def fail(self, effect: FailRow, owner: str) -> bool:
        stored = self._owned(effect.job, effect.attempt, owner)
        if stored is not None and len(stored.counted | {effect.attempt}) < effect.failures:
            self._wait(stored)
        elif stored is not None:
            stored.state, stored.owner = effect.state, None
        return stored is not None

    def requeue(self, effect: RequeueRow, owner: str) -> bool:
        stored = self._owned(effect.job, effect.attempt, owner)
        if stored is not None:
            stored.owner = None
            stored.state = "preempted" if stored.done or stored.row.begun else "queued"
            stored.row = msgspec.structs.replace(stored.row, not_before_ns=effect.not_before_ns)
            own = {effect.attempt}
            stored.count(stored.counted - own if effect.spares else stored.counted | own)
            if effect.forgets:
                stored.state, stored.done, stored.key = "queued", 0, None
                stored.row = msgspec.structs.replace(stored.row, begun=0, device_ns=0, restarts=stored.row.restarts + 1)
        return stored is not None

    def spare(self, effect: SpareRow, owner: str) -> None:
        stored = self.rows.get(effect.job)
        if stored is None or stored.state in OVER:
            return
        if self._owned(effect.job, effect.attempt, owner) is not None:
            self._wait(stored)
        stored.count(stored.counted - {effect.attempt})

    def expire(self, before_ns: Ns, now_ns: Ns, owner: str) -> list[RequestId]:
        over = []
        for job, stored in self.rows.items():
            is_old = stored.row.stored_ns < before_ns and stored.state == "queued" and not stored.has_begun
            is_silent = stored.owner not in (None, owner) and stored.until_ns < now_ns
            if is_old and (stored.owner is None or is_silent):
                stored.state, stored.owner = "expired", None
                over.append(job)
            elif is_silent:
                self._wait(stored)
        return over

    def cancel(self, job: RequestId) -> int | None:
        """The attempt that lost its row; None: nothing changed."""
        stored = self.rows.get(job)
        if stored is None or stored.state in OVER:
            return None
        stored.state, stored.owner = "cancelled", None
        return stored.row.attempt

    def pause(self, job: RequestId, now_ns: Ns) -> int | None:
        """Who runs it keeps the row until it is saved."""
        stored = self.rows.get(job)
        if stored is None or stored.state in OVER:
            return None
        stored.is_paused = True
        if stored.owner is None or stored.until_ns < now_ns:
            self._wait(stored)
        return stored.row.attempt

    def _wait(self, stored: Stored) -> None:
        stored.owner = None
        if stored.state not in WAITING or stored.done or stored.row.begun:
            stored.state = "preempted" if stored.done or stored.row.begun else "queued"

    def resume(self, job: RequestId) -> JobRow | None:
        stored = self.rows.get(job)
        if stored is None or stored.state in OVER or not stored.is_paused:
            return None
        stored.is_paused = False
        return stored.row

    def perform(self, effect: "JobEffect | BeginRow", owner: str, now_ns: Ns) -> JobEvent | None:
        """Do what a node or its edge asks of the table."""
        match effect:
            case ReadRows():
                rows, has_more = self.claimable(effect.limit, now_ns)
                return RowsSeen(now_ns, "table", tuple(rows), has_more)
            case ClaimRow():
                row = self.claim(effect, owner, now_ns)
                if row is None:
                    return RowLost(now_ns, "table", effect.job, effect.attempt)
                return RowClaimed(now_ns, "table", row, effect.until_ns)
            case BeginRow():
                if self.begin(effect.job, effect.attempt, owner):
                    return RowKept(now_ns, "table", effect.job, effect.attempt, 0)
                return RowLost(now_ns, "table", effect.job, effect.attempt)
            case KeepRows():
                lost = tuple(self.keep(effect, owner))
                kept = tuple(place for place in places(effect) if place not in lost)
                return RowsKept(now_ns, "table", effect.until_ns, kept, lost)
            case SaveCheckpoint():
                if self.checkpoint(effect, owner):
                    return RowKept(now_ns, "table", effect.job, effect.attempt, effect.until_ns)
                return RowLost(now_ns, "table", effect.job, effect.attempt)
            case WatchRows():
                return self.watch(effect, owner)
            case CompleteRow() | FailRow() | RequeueRow():
                closed = self._close(effect, owner)
                answer = RowClosed if closed else RowLost
                return answer(now_ns, "table", effect.job, effect.attempt)
            case ReadHooks():
                return HooksSeen(now_ns, "table", ())
            case ExpireRows():
                self.expire(effect.stored_before_ns, now_ns, owner)
                return None
            case SpareRow():
                self.spare(effect, owner)
                return RowClosed(now_ns, "table", effect.job, effect.attempt)
            case _:
                return None

    def _close(self, effect: CompleteRow | FailRow | RequeueRow, owner: str) -> bool:
        if isinstance(effect, CompleteRow):
            return self.complete(effect, owner)
        return self.fail(effect, owner) if isinstance(effect, FailRow) else self.requeue(effect, owner)


def places(effect: KeepRows) -> tuple[tuple[RequestId, int], ...]:
    """The attempts whose heartbeats it holds."""
    return tuple((row.job, row.attempt) for row in effect.rows)


def job_row(number: int, **changes: object) -> JobRow:
    """A job of ten steps."""
    row = JobRow(RequestId(f"job-{number}"), TenantId("t"), ModelId("m"), 10, 0, 0, estimate_ns=10 * NS_PER_S)
    return msgspec.structs.replace(row, **changes)


class Work:
    """One started job on an engine."""

    def __init__(self, row: JobRow, save_every: int) -> None:
        self.row, self.save_every, self.done, self.is_stopped = row, save_every, row.begun, False
        self.has_begun = False  # the table knows of it
        self.saves = False  # with its next step, before it stops


class Gateway:
    """A node with its queues: to the table, from everywhere, and its timers. A crash forgets all of it."""

    def __init__(self, name: str, params: JobParams) -> None:
        self.name, self.node = name, JobNode(params)
        self.to_table: Turns[tuple[Ns, JobEffect | BeginRow]] = Turns()  # each with when it was asked for
        self.ended: set[tuple[RequestId, int]] = set()  # attempts whose ends were asked to be written
        self.inbox: deque[JobEvent] = deque()
        self.timers: list[tuple[Ns, TimerId]] = []
        self.works: dict[RequestId, Work] = {}


class JobWorld:
    """Several gateways on one table. `choose` makes every choice; `outcome` says how work ends that ran to its end."""

    def __init__(self, rng: random.Random, gateways: int, params: JobParams | None = None) -> None:
        self.rng, self.now_ns, self.table = rng, 0, MemoryTable()
        self.params = params or JobParams(
            running_max=3,
            lease_s=4.0,
            progress_s=1.0,
            poll_s=2.0,
            attempts_max=1000,
            backoff=BackoffParams(0.5, 2.0),
        )
        self._names = 0
        self.gateways = [self._gateway() for _ in range(gateways)]
        self.outcome: Callable[[Work], Outcome] = lambda _: Outcome("completed", device_ns=NS_PER_S, images=1)
        self.fits: Callable[[JobRow], bool] = lambda _: True  # its checkpoint, where the attempt begins
        self.are_leases_whole = False  # however long they waited, as `TableDriver` writes them: fewer run out
        self.starts: list[tuple[str, JobRow]] = []
        self.saved: dict[RequestId, int] = {}
        self.still: set[str] = set()  # gateways that stand still: late, not dead
        # Since the last checkpoint of a job:
        self.faults: Counter[RequestId] = Counter()  # attempts that broke, or were begun and their gateway died
        self.open: dict[tuple[RequestId, int], str] = {}  # begun, and nobody has accounted for them -> their gateway

    def _gateway(self) -> Gateway:
        self._names += 1
        gateway = Gateway(f"gw-{self._names}", self.params)
        gateway.inbox.append(TableOpened(self.now_ns, "test"))
        return gateway

    def store(self, row: JobRow) -> None:
        """A client's job, at some gateway."""
        row = self.table.insert(msgspec.structs.replace(row, stored_ns=self.now_ns))
        self.rng.choice(self.gateways).inbox.append(JobStored(self.now_ns, "edge", row))

    def crash(self, gateway: Gateway) -> None:
        """kill -9, and a new process in its place."""
        for place, owner in list(self.open.items()):
            if owner == gateway.name:
                self.faults[place[0]] += 1
                del self.open[place]
        self.gateways[self.gateways.index(gateway)] = self._gateway()

    def ask(self, gateway: Gateway, effect: JobEffect | BeginRow) -> None:
        """It waits for the table. A heartbeat passes what waits, and so never waits behind its own attempt's end."""
        if isinstance(effect, CompleteRow | FailRow | RequeueRow | SpareRow):
            gateway.ended.add((effect.job, effect.attempt))
        is_beat = isinstance(effect, KeepRows)
        assert not (is_beat and gateway.ended.intersection(places(effect)))
        gateway.to_table.put((self.now_ns, effect), is_beat)

    def feed(self, gateway: Gateway) -> None:
        """Let a node see its next event."""
        event = msgspec.structs.replace(gateway.inbox.popleft(), at_ns=self.now_ns)
        for effect in gateway.node.handle(event):
            match effect:
                case StartJob():
                    self.starts.append((gateway.name, effect.row))
                    assert effect.row.begun == self.saved.get(effect.row.job, 0), "starts from its last checkpoint"
                    assert effect.row.job not in gateway.works
                    gateway.works[effect.row.job] = Work(effect.row, effect.save_every)
                    self.ask(gateway, BeginRow(effect.row.job, effect.row.attempt))
                case StopJob() if effect.job in gateway.works:  # else its end is on its way
                    work = gateway.works[effect.job]
                    work.is_stopped, work.saves = True, effect.saves and not work.is_stopped
                case StopJob():
                    pass
                case WakeAt():
                    gateway.timers.append((effect.at_ns, effect.timer))
                case _:
                    self.ask(gateway, effect)

    def serve(self, gateway: Gateway, is_answered: bool = True, is_done: bool = True) -> None:
        """Let the table do the next thing that a node asked for; it may not answer, and may have done it."""
        asked_ns, effect = gateway.to_table.take()
        if self.are_leases_whole and isinstance(effect, KeepRows | ClaimRow | SaveCheckpoint):
            effect = msgspec.structs.replace(effect, until_ns=effect.until_ns + self.now_ns - asked_ns)
        if isinstance(effect, FailRow) and effect.state == "lost" and is_done:
            self._check_lost(effect)
        answer = self.table.perform(effect, gateway.name, self.now_ns) if is_done else None
        if isinstance(effect, SaveCheckpoint):
            self.saved[effect.job] = self.table.rows[effect.job].row.begun
        if isinstance(effect, RequeueRow) and effect.forgets and isinstance(answer, RowClosed):
            self.saved.pop(effect.job, None)
        if not is_done and not isinstance(effect, RowEffect | KeepRows):
            answer = self.table.perform(effect, gateway.name, self.now_ns)
        is_closed = isinstance(answer, RowClosed | RowKept)  # whether or not its gateway hears of it
        if not is_answered and isinstance(effect, RowEffect):
            answer = RowUnknown(self.now_ns, "table", effect.job, effect.attempt)
        elif not is_answered and isinstance(effect, KeepRows):
            answer = RowsKept(self.now_ns, "table", effect.until_ns, unknown=places(effect))
        if isinstance(effect, RowEffect):
            self._account(effect, gateway.name, is_answered or is_done, is_closed)
        if isinstance(effect, BeginRow) and effect.job in gateway.works:
            self._begin(gateway, gateway.works[effect.job], answer)
        elif answer is not None and not isinstance(effect, BeginRow):
            gateway.inbox.append(answer)

    def _begin(self, gateway: Gateway, work: Work, answer: JobEvent | None) -> None:
        """The edge begins nothing that the table does not know of."""
        job, attempt = work.row.job, work.row.attempt
        work.has_begun = isinstance(answer, RowKept)
        if not work.has_begun:
            del gateway.works[job]
            outcome = Outcome("refused" if isinstance(answer, RowUnknown) else "interrupted")
            gateway.inbox.append(JobEnded(self.now_ns, "edge", job, attempt, outcome))

    def _account(self, effect: "RowEffect", owner: str, is_done: bool, is_closed: bool) -> None:
        """What became of an attempt. The table counts every fault, and nothing but faults and open attempts."""
        stored, place = self.table.rows[effect.job], (effect.job, effect.attempt)
        if isinstance(effect, BeginRow):
            if is_closed:
                self.open[place] = owner
        elif isinstance(effect, SaveCheckpoint) and is_closed:
            self.faults[effect.job] = 0
            self.open = {other: who for other, who in self.open.items() if other[0] != effect.job or other == place}
        elif is_done and isinstance(effect, FailRow | SpareRow | RequeueRow):
            is_fault = isinstance(effect, FailRow) or (isinstance(effect, RequeueRow) and not effect.spares)
            is_told = is_fault or is_closed or isinstance(effect, SpareRow)
            self.faults[effect.job] += bool(is_told and self.open.pop(place, None) and is_fault)
        if stored.state not in OVER:
            others = sum(job == effect.job for job, _ in self.open)
            assert self.faults[effect.job] <= stored.row.failures <= self.faults[effect.job] + others

    def _check_lost(self, effect: FailRow) -> None:
        """SPEC H3: a job is given up for attempts that failed, not for slow gateways. One that stands still yet counts
        as dead: at most one attempt per gateway."""
        stored, place = self.table.rows[effect.job], (effect.job, effect.attempt)
        is_over = stored.state in OVER or stored.row.attempt != effect.attempt
        if is_over or len(stored.counted | {effect.attempt}) < effect.failures:
            return
        others = sum(other != place for other in self.open if other[0] == effect.job)
        assert others < len(self.gateways)
        has_run = effect.failures == self.params.attempts_max
        assert self.faults[effect.job] + has_run + others >= self.params.attempts_max

    def work(self, gateway: Gateway) -> None:
        """One step of one job that runs there."""
        job = self.rng.choice(sorted(gateway.works))
        work, row = gateway.works[job], gateway.works[job].row
        if not work.has_begun:
            return
        if work.saves and work.done < row.steps - 1:
            work.done, work.saves = work.done + 1, False
            self._save(gateway, work)
        elif work.saves:
            work.done, work.is_stopped, work.saves = row.steps, False, False  # there is nothing left to save
        elif work.is_stopped or work.done >= row.steps:
            del gateway.works[job]
            outcome = Outcome("interrupted") if work.is_stopped else self.outcome(work)
            gateway.inbox.append(JobEnded(self.now_ns, "edge", job, row.attempt, outcome))
        elif row.begun and work.done == row.begun and not self.fits(row):
            del gateway.works[job]
            gateway.inbox.append(JobEnded(self.now_ns, "edge", job, row.attempt, Outcome("unfit", "bad_checkpoint")))
        else:
            work.done += 1
            gateway.inbox.append(JobProgressed(self.now_ns, "edge", job, row.attempt, "denoise", work.done))
            if work.save_every and work.done % work.save_every == 0 and work.done < row.steps:
                self._save(gateway, work)

    def _save(self, gateway: Gateway, work: Work) -> None:
        job, attempt = work.row.job, work.row.attempt
        key = f"{job}/{attempt}/{work.done}"
        saved = JobSaved(self.now_ns, "edge", job, attempt, work.done, key, NS_PER_S // 100, NS_PER_S)
        gateway.inbox.append(saved)

    def fire(self, gateway: Gateway) -> bool:
        """Deliver a timer that is due."""
        due = [timer for timer in gateway.timers if timer[0] <= self.now_ns]
        for timer in due:
            gateway.timers.remove(timer)
            gateway.inbox.append(TimerFired(self.now_ns, timer[1], timer[1]))
        return bool(due)

    def turn(self) -> None:
        """Something happens somewhere."""
        awake = [gateway for gateway in self.gateways if gateway.name not in self.still]
        if not awake:
            self.now_ns += NS_PER_S
            return
        gateway = self.rng.choice(awake)
        choices: list[Callable[[], object]] = [lambda: self.fire(gateway)]
        if gateway.inbox:
            choices.append(lambda: self.feed(gateway))
        if gateway.to_table:
            choices.append(lambda: self.serve(gateway))
        if gateway.works:
            choices.append(lambda: self.work(gateway))
        self.rng.choice(choices)()
        self.now_ns += ns_from_s(self.rng.choice((0.0, 0.0, 0.01, 0.1)))

    def settle(self, until: Callable[[], bool], turns: int = 20_000) -> None:
        """Nothing is disturbed any more: go on until it is so. Fails when that takes too long."""
        for _ in range(turns):
            if until():
                return
            self.turn()
        states = {job: (stored.state, stored.row.attempt) for job, stored in self.table.rows.items()}
        raise AssertionError(f"not reached at {self.now_ns / NS_PER_S:.1f} s: {states}")

    def is_over(self) -> bool:
        """Every job is."""
        return all(stored.state in OVER for stored in self.table.rows.values())
