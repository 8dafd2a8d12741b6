"""JobNode's hands at the job table: each effect runs in the table's own thread, its answer comes back as an event."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec

from headway.adapters.jobs.answers import AnswerTable
from headway.adapters.jobs.clients import ClientTable
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.evidence import EvidenceTable
from headway.adapters.jobs.lapsed import Lapsed
from headway.adapters.jobs.outbox import Outbox
from headway.adapters.jobs.outputs import StoredOutput
from headway.adapters.jobs.places import Places
from headway.adapters.jobs.queue import Queue
from headway.adapters.jobs.table import NodeTable, Retention
from headway.adapters.jobs.usage import UsageTable
from headway.core.errors import CapacityError
from headway.core.ids import RequestId
from headway.core.job_effects import (
    ClaimHook,
    ClaimRow,
    CloseHook,
    CompleteRow,
    ExpireRows,
    FailRow,
    KeepRows,
    PostponeHook,
    ReadHooks,
    ReadRows,
    RequeueRow,
    SaveCheckpoint,
    SpareRow,
    WatchRows,
)
from headway.core.jobs import (
    HookClaimed,
    HookLost,
    HooksSeen,
    JobEvent,
    RowClaimed,
    RowClosed,
    RowKept,
    RowLost,
    RowsKept,
    RowsSeen,
    RowsWatched,
    RowUnknown,
)
from headway.core.units import Ns, s_from_ns
from headway.live.jobs_settings import JobSettings
from headway.sched.jobs.turns import Turns

log = logging.getLogger(__name__)
T = TypeVar("T")
Feed = Callable[[Callable[[Ns], JobEvent]], None]
Made = Callable[[RequestId, int], Sequence[StoredOutput]]
Leased = ClaimRow | SaveCheckpoint
RowEffect = Leased | CompleteRow | FailRow | RequeueRow | SpareRow
TableEffect = (
    RowEffect | KeepRows | WatchRows | ReadRows | ExpireRows | ReadHooks | ClaimHook | PostponeHook | CloseHook
)


class Tables:
    """Every table of one database, and the one thread that they are used from, beside the event loop: in order, but
    for heartbeats, which go first (`Turns`)."""

    def __init__(self, settings: JobSettings, owner: str) -> None:
        """Opens the database. Raises ConfigError."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")
        self._lock = threading.Lock()
        self._turns: Turns[Callable[[], None]] = Turns()
        retention = Retention(settings.keep_ns, settings.answers_ns)
        self.database = self._thread.submit(Database, settings.database_url).result()
        self.node = NodeTable(self.database, owner, retention)
        self.lapsed = Lapsed(self.database, retention, owner)
        self.clients = ClientTable(self.database, retention, settings.queued_max)
        self.places = Places(self.database)
        self.queue = Queue(self.database)
        self.answers = AnswerTable(self.database, owner)
        self.usage = UsageTable(self.database)
        self.evidence = EvidenceTable(self.database)
        self.outbox = Outbox(self.database)

    def ask(self, work: Callable[[], T], is_beat: bool = False) -> asyncio.Future[T]:
        """Run it in the thread; what was begun is done wholly, whether or not somebody still waits. `is_beat`: a
        heartbeat, which passes others. Raises RuntimeError after `close`."""
        loop, done = asyncio.get_running_loop(), Future[T]()
        with self._lock:
            self._thread.submit(self._next)
            self._turns.put(lambda: _run(work, done), is_beat)
        return asyncio.wrap_future(done, loop=loop)

    def _next(self) -> None:
        with self._lock:
            run = self._turns.take()
        run()

    def close(self) -> None:
        """What was asked for is done first."""
        self._thread.submit(self.database.close)
        self._thread.shutdown()


def _run(work: Callable[[], T], done: Future[T]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)


class TableDriver:
    """Performs the table's effects. `made`: the stored outputs of an attempt that is completed."""

    def __init__(self, tables: Tables, feed: Feed, now_ns: Callable[[], Ns], made: Made) -> None:
        self._tables, self._feed, self._now_ns, self._made = tables, feed, now_ns, made
        self._is_late = False
        self.starting: Callable[[], Sequence[str]] = tuple  # models whose jobs are not to be claimed yet

    def perform(self, effect: TableEffect) -> None:
        """Begin it; the answer is fed when it is there."""
        asked_ns, starting = self._now_ns(), self.starting()
        future = self._tables.ask(lambda: self._do(effect, asked_ns, starting), isinstance(effect, KeepRows))
        future.add_done_callback(lambda done: self._done(effect, done))

    def _done(self, effect: TableEffect, done: "asyncio.Future[Callable[[Ns], JobEvent] | None]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            answer = done.result()
        elif isinstance(error, CapacityError):
            log.warning("%s: %s", type(effect).__name__, error)
            answer = _unanswered(effect)
        else:
            log.error("%s broke at the job table", type(effect).__name__, exc_info=error)
            answer = _unanswered(effect)
        if answer is not None:
            self._feed(answer)

    def _do(self, effect: TableEffect, asked_ns: Ns, starting: Sequence[str]) -> Callable[[Ns], JobEvent] | None:
        """In the table's thread."""
        node, outbox, now_ns = self._tables.node, self._tables.outbox, self._now_ns()
        match effect:
            case ReadRows():
                rows, has_more = node.claimable(effect.limit, now_ns, starting)
                return lambda at_ns: RowsSeen(at_ns, "table", tuple(rows), has_more)
            case WatchRows():
                lost, saves = node.watch(effect)
                return lambda at_ns: RowsWatched(at_ns, "table", lost, saves)
            case ExpireRows():
                self._tables.lapsed.expire(effect.stored_before_ns, now_ns)
                return None
            case ReadHooks():
                due = outbox.due(effect.limit, now_ns)
                return lambda at_ns: HooksSeen(at_ns, "table", due)
            case ClaimHook():
                hook = outbox.claim(effect.hook, effect.attempt, effect.until_ns, now_ns)
                if hook is None:
                    return lambda at_ns: HookLost(at_ns, "table", effect.hook)
                return lambda at_ns: HookClaimed(at_ns, "table", hook)
            case PostponeHook():
                outbox.postpone(effect.hook, effect.attempt, effect.not_before_ns, effect.reason)
                return None
            case CloseHook():
                outbox.close(effect.hook, effect.attempt, effect.is_delivered, effect.reason)
                return None
            case KeepRows() | ClaimRow() | SaveCheckpoint():  # a lease is whole, however long it waited to be written
                leased = msgspec.structs.replace(effect, until_ns=effect.until_ns + now_ns - asked_ns)
                if not isinstance(leased, KeepRows):
                    return self._row(leased, now_ns)
                self._look(now_ns - asked_ns, effect.until_ns - asked_ns)
                return self._keep(leased)
            case _:
                return self._row(effect, now_ns)

    def _look(self, waited_ns: Ns, lease_ns: Ns) -> None:
        """Say it once, until it is over, where heartbeats come so late that leases may run out."""
        is_late = waited_ns > lease_ns // 3
        if is_late and not self._is_late:
            story = "heartbeats of jobs wait %.1f s for the job table, and jobs.lease_s is %g s: gateways that share "
            story += "it may take over what runs here, and do it twice; raise jobs.lease_s, or give it a faster disk"
            log.warning(story, s_from_ns(waited_ns), s_from_ns(lease_ns))
        self._is_late = is_late

    def _keep(self, effect: KeepRows) -> Callable[[Ns], JobEvent]:
        lost = tuple(self._tables.node.keep(effect))
        kept = tuple(row for row in _places(effect) if row not in lost)
        return lambda at_ns: RowsKept(at_ns, "table", effect.until_ns, kept, lost)

    def _row(self, effect: RowEffect, now_ns: Ns) -> Callable[[Ns], JobEvent]:
        node, job, attempt = self._tables.node, effect.job, effect.attempt
        match effect:
            case ClaimRow():
                row = node.claim(effect, now_ns)
                if row is not None:
                    return lambda at_ns: RowClaimed(at_ns, "table", row, effect.until_ns)
                held = False
            case SaveCheckpoint():
                held = node.checkpoint(effect)
                if held:
                    return lambda at_ns: RowKept(at_ns, "table", job, attempt, effect.until_ns)
            case CompleteRow():
                held = node.complete(effect, self._made(job, attempt), now_ns)
            case FailRow():
                held = node.fail(effect, now_ns)
            case RequeueRow():
                held = node.requeue(effect)
            case SpareRow():
                node.spare(effect)
                held = True
        if held:
            return lambda at_ns: RowClosed(at_ns, "table", job, attempt)
        return lambda at_ns: RowLost(at_ns, "table", job, attempt)


def _places(effect: KeepRows) -> tuple[tuple[RequestId, int], ...]:
    return tuple((row.job, row.attempt) for row in effect.rows)


def _unanswered(effect: TableEffect) -> Callable[[Ns], JobEvent] | None:
    """What JobNode is told when nobody knows whether it was done."""
    match effect:
        case ReadRows():
            return lambda at_ns: RowsSeen(at_ns, "no answer", (), False)
        case KeepRows():
            return lambda at_ns: RowsKept(at_ns, "no answer", effect.until_ns, unknown=_places(effect))
        case WatchRows():
            return lambda at_ns: RowsWatched(at_ns, "no answer")
        case ClaimHook():
            return lambda at_ns: HookLost(at_ns, "no answer", effect.hook)
        case ReadHooks():
            return lambda at_ns: HooksSeen(at_ns, "no answer", ())
        case ExpireRows() | PostponeHook() | CloseHook():
            return None  # they come again: by timer, or when the claim of the message is over
        case _:
            return lambda at_ns: RowUnknown(at_ns, "no answer", effect.job, effect.attempt)
