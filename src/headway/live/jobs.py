"""The durable side of one gateway: JobNode between the job table, the front, the object store and the webhook client.

It decides nothing: what is claimed, kept, saved or given up is JobNode's choice.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from headway.adapters.gateway.job_ports import Durable
from headway.adapters.storage.keys import job_prefix
from headway.adapters.storage.objects import ObjectStore
from headway.adapters.storage.settings import StorageSettings
from headway.adapters.webhooks.send import Webhooks
from headway.core.effects import WakeAt
from headway.core.errors import CapacityError, ConfigError
from headway.core.events import TimerFired
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, RequestId
from headway.core.job_effects import (
    CloseHook,
    JobEffect,
    PostponeHook,
    RequeueRow,
    SaveCheckpoint,
    SendHook,
    SpareRow,
    StartJob,
    StopJob,
    SweepObjects,
)
from headway.core.jobs import DrainBegan, JobEvent, RowClosed, RowLost, TableOpened
from headway.core.units import NS_PER_S, Ns, ns_from_s, s_from_ns
from headway.live.clock import Clock, unix_s
from headway.live.jobs_answers import AnswerDesk
from headway.live.jobs_clients import ClientDesk, MeterDesk, PictureDesk
from headway.live.jobs_evidence import EvidenceKeeper
from headway.live.jobs_hooks import HookSender
from headway.live.jobs_queue import QueueDesk
from headway.live.jobs_runs import FrontDoor, JobRuns
from headway.live.jobs_settings import JobSettings, objects_folder
from headway.live.jobs_table import TableDriver, Tables
from headway.live.jobs_usage import TokenMeter
from headway.sched.jobs.node import JobNode

log = logging.getLogger(__name__)

_STATES_NS: Final = 2 * NS_PER_S
_LOOK_NS: Final = 10 * NS_PER_S  # at the object store: each look is a request that may cost
_SWEPT_AT_ONCE: Final = 100


class JobDesk:
    """Opened before HTTP is, begun before replicas are ready, stopped before they are."""

    def __init__(
        self,
        settings: JobSettings,
        storage: StorageSettings,
        front: FrontDoor,
        clock: Clock,
        grace_s: float | None = None,
    ) -> None:
        """Opens the job table. `grace_s`: what `stop` will be given. Raises ConfigError."""
        url = settings.database_url
        folder = Path() if storage.url else objects_folder(url)
        self._settings, self._clock, self._epoch_ns = settings, clock, clock.epoch_ns()
        self.store = ObjectStore(storage, folder)
        self._tables = Tables(settings, f"{socket.gethostname()}-{secrets.token_hex(8)}")
        self._webhooks = Webhooks(settings.webhooks, settings.hooks.timeout_s, unix_s)
        self._hooks = HookSender(self._tables, self._webhooks, self.feed)
        self._node = JobNode(settings, None if grace_s is None else ns_from_s(grace_s))
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[Ns], JobEvent]] = deque()
        self._is_feeding = False
        self._last_ns: Ns = 0
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs = JobRuns(front, self._tables, self.store, self.feed, self._epoch_ns)
        self._evidence = EvidenceKeeper(self._tables, self._epoch_ns)
        self._table = TableDriver(self._tables, self.feed, self.now_ns, self._runs.made)
        self._table.starting = lambda: self.starting()
        self.starting: Callable[[], Sequence[str]] = tuple  # models that are not ready yet: their jobs wait
        self.tokens = TokenMeter(self._tables, self.now_ns)
        self._answers = AnswerDesk(self._tables, self.now_ns, settings.answers_ns)
        self._states: list[tuple[str, int]] = []
        self._held: tuple[str, ...] = ()
        self._states_ns: Ns = 0  # when they were read
        self._looked_ns: Ns = 0  # when the object store was looked at
        self._is_looking = False
        self._saved: dict[RequestId, int] = {}  # of what runs: the last step that is kept
        self._handed: dict[RequestId, int] = {}  # back in the line, since `stop` began
        self.replicas: Callable[[ModelId], int] = lambda _: 1  # that may run a model now: for `eta_s`

    def now_ns(self) -> Ns:
        """The table's clock: Unix time, which does not run backwards while this process lives."""
        return self._epoch_ns + self._clock.now_ns()

    def durable(self) -> Durable:
        """What the gateway is given."""
        tables, store, now_ns = self._tables, self.store, self.now_ns
        clients = ClientDesk(tables, store, self._webhooks, self.feed, now_ns)
        clients.previews, clients.epoch_ns = self._settings.previews, self._epoch_ns
        clients.replicas = lambda model: self.replicas(model)
        pictures, meters = PictureDesk(tables, store, now_ns, self.tokens), MeterDesk(tables)
        return Durable(clients, pictures, self._answers, meters, QueueDesk(tables, self.feed, now_ns))

    async def open(self) -> None:
        """Check the object store, and free what an earlier life of this gateway had claimed. Raises ConfigError."""
        await self.store.check()
        try:
            freed = await self._tables.ask(self._tables.lapsed.release_all)
        except CapacityError as error:
            why = getattr(error.__cause__, "orig", error)  # clients are told less
            raise ConfigError(f"jobs.url = {self._tables.database.name} cannot be used: {why}") from error
        await self._count()
        self._begin(self.tokens.run())
        if freed:
            log.info("%d jobs of an earlier life of this gateway go on", freed)

    def observe(self, record: EvidenceRecord) -> None:
        """A request of this gateway is over, a job's or a client's."""
        attempt = self._runs.spending.observe(record)
        if attempt is None:
            self.tokens.observe(record)
        else:
            self._evidence.keep(attempt, record)

    def states(self) -> list[tuple[str, int]]:
        """Jobs by state, at most a few seconds old where somebody reads them regularly: reading them reads anew."""
        if self.now_ns() - self._states_ns >= _STATES_NS:
            self._states_ns = self.now_ns()
            self._begin(self._count())
        return self._states

    def held(self) -> tuple[str, ...]:
        """Models whose queue is paused, `*` for all: as old as `states`."""
        return self._held

    def webhooks(self) -> tuple[tuple[str, int], ...]:
        """Attempts at delivery by what came of them, since the start."""
        return self._hooks.counts()

    def degraded(self) -> tuple[str, ...]:
        """What does not answer, as it was when last used: reading it looks anew."""
        self.states()
        if not self._is_looking and self.now_ns() - self._looked_ns >= _LOOK_NS:
            self._is_looking, self._looked_ns = True, self.now_ns()
            self._begin(self._look())
        table, store = self._tables.database.outage.is_on, self.store.outage.is_on
        words = ((table, "job table does not answer"), (store, "object store does not answer"))
        return tuple(told for is_on, told in words if is_on)

    async def _look(self) -> None:
        with contextlib.suppress(CapacityError):  # its outage is noted, and logged
            await self.store.look()
        self._is_looking = False

    async def _count(self) -> None:
        try:
            self._states = await self._tables.ask(self._tables.clients.states)
            self._held = tuple(hold.model for hold in (await self._tables.ask(self._tables.queue.view)).holds)
        except CapacityError as error:
            log.warning("jobs are not counted: %s", error)

    def begin(self) -> None:
        """Claim jobs from now on."""
        self.feed(lambda at_ns: TableOpened(at_ns, "start"))

    async def stop(self, grace_s: float) -> str:
        """Save and hand back what runs, at most `grace_s`; what is not saved by then is handed back all the same, to go
        on from the checkpoint before. Returns what became of it, for people; nothing when nothing ran."""
        self._handed.clear()
        self.feed(lambda at_ns: DrainBegan(at_ns, "stop"))
        deadline = self._loop.time() + grace_s
        while not self._node.is_idle and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        await self._runs.close()
        for timer in self._timers.values():
            timer.cancel()
        try:
            left = await self._tables.ask(self._tables.node.give_back)
        except CapacityError as error:
            return f"jobs that run here go on when their leases are over: {error}"
        if left:
            story = "%d jobs could not be saved within server.shutdown_s = %g s: they go on from their last checkpoints"
            log.warning(story, left, grace_s)
        kept = [f"{job} from step {step}" for job, step in self._handed.items()]
        return f"jobs that ran go on at the next start: {', '.join(kept)}" if kept else ""

    async def close(self) -> None:
        """Once nothing runs any more: write what is still to be metered, and let go of the table."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._webhooks.close()
        await self._answers.close()
        await self._evidence.close()
        await self.tokens.flush()
        await asyncio.to_thread(self._tables.close)

    # Driving the node

    def feed(self, make: Callable[[Ns], JobEvent]) -> None:
        """Hand an event to the node; called from within an effect, it waits for its turn."""
        self._inbox.append(make)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inbox:
                self._last_ns = max(self._last_ns, self.now_ns())
                event = self._inbox.popleft()(self._last_ns)
                if isinstance(event, RowClosed | RowLost):
                    self._runs.over(event)
                    self._saved.pop(event.job, None)
                for effect in self._node.handle(event):
                    self._perform(effect)
        finally:
            self._is_feeding = False

    def _perform(self, effect: JobEffect) -> None:
        if isinstance(effect, SaveCheckpoint):
            self._saved[effect.job] = effect.done
        elif isinstance(effect, RequeueRow):
            self._handed[effect.job] = 0 if effect.forgets else self._saved.get(effect.job, 0)
        elif isinstance(effect, SpareRow):
            self._runs.over(effect)
        elif isinstance(effect, CloseHook | PostponeHook):
            self._hooks.told(effect, self._last_ns)
        match effect:
            case StartJob():
                self._saved[effect.row.job] = effect.row.begun
                self._runs.start(effect)
            case StopJob():
                self._runs.stop(effect)
            case WakeAt():
                self._wake(effect)
            case SendHook():
                self._begin(self._hooks.send(effect))
            case SweepObjects():
                self._begin(self._sweep())
            case _:
                self._table.perform(effect)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the job desk broke", exc_info=error)

    def _wake(self, effect: WakeAt) -> None:
        number = id(effect)
        delay_s = max(0.0, s_from_ns(effect.at_ns - self.now_ns()))
        self._timers[number] = self._loop.call_later(delay_s, self._fire, number, effect)

    def _fire(self, number: int, effect: WakeAt) -> None:
        del self._timers[number]
        if effect.at_ns > self.now_ns():  # the loop's clock is coarser than ours; a timer never fires early
            self._wake(effect)
            return
        self.feed(lambda at_ns: TimerFired(at_ns, effect.timer, effect.timer))

    async def _sweep(self) -> None:
        """Objects first: a row that is there tells where its objects are."""
        tables = self._tables
        try:
            while True:
                old = await tables.ask(lambda: tables.clients.expired(self.now_ns(), _SWEPT_AT_ONCE))
                for tenant, job in old:
                    await self.store.delete_below(job_prefix(tenant, job))
                    await tables.ask(partial(tables.clients.delete, job, None))
                if len(old) < _SWEPT_AT_ONCE:
                    break
            await tables.ask(lambda: tables.answers.sweep(self.now_ns()))
            await tables.ask(lambda: tables.outbox.sweep(self.now_ns() - self._settings.keep_ns))
        except CapacityError as error:
            log.warning("what has expired stays for now: %s", error)
