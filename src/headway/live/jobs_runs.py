"""Runs claimed jobs: hands a job's request to the front as a client would, and keeps what is made of it as objects."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol

import msgspec

from headway.adapters.gateway.job_ports import OutputKind
from headway.adapters.gateway.ports import TokenStream
from headway.adapters.jobs.outputs import StoredOutput, read_json
from headway.adapters.jobs.table import JobInput
from headway.adapters.storage.keys import job_prefix
from headway.adapters.storage.objects import DamagedObject, ObjectStore
from headway.core.artifacts import BAD_CHECKPOINT, Made
from headway.core.effects import Admitted, End, Show
from headway.core.errors import CapacityError
from headway.core.ids import RequestId
from headway.core.job_effects import SpareRow, StartJob, StopJob
from headway.core.jobs import JobEnded, JobEvent, JobProgressed, JobRow, JobSaved, JobState, Outcome, RowClosed, RowLost
from headway.core.request import DiffusionRequest, FinishReason, Request, Slo
from headway.core.units import Ns
from headway.live.jobs_attempt import Attempt
from headway.live.jobs_ends import ended, media_type
from headway.live.jobs_sheets import MEDIA_TYPE, sheets
from headway.live.jobs_spent import Spending
from headway.live.jobs_table import Tables
from headway.sched.admission.protocol import Lessened, lessened

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint-"  # what names of these objects begin with
Feed = Callable[[Callable[[Ns], JobEvent]], None]


class FrontDoor(Protocol):
    """What a job needs of `Serving`."""

    def now_ns(self) -> Ns: ...

    def submit(self, request: Request, received_ns: Ns, body_ns: Ns) -> TokenStream: ...

    def cancel(self, request: RequestId, *, saves: bool = False) -> None: ...

    def closed(self, request: RequestId, first_token_ns: Ns | None, input_bytes: int, *, stored_ns: Ns = 0) -> None: ...


class JobRuns:
    """Answers every `start` with exactly one JobEnded."""

    def __init__(self, front: FrontDoor, tables: Tables, store: ObjectStore, feed: Feed, epoch_ns: int) -> None:
        self._front, self._tables, self._store, self._feed = front, tables, store, feed
        self._epoch_ns = epoch_ns  # Unix time of run start: requests speak in time of the run, the table does not
        self._attempts: dict[RequestId, Attempt] = {}
        self._tasks: dict[RequestId, asyncio.Task[Outcome]] = {}
        self._cleaning: set[asyncio.Task[None]] = set()
        self._stored: dict[tuple[RequestId, int], list[StoredOutput]] = {}
        self.spending = Spending(tables, lambda: front.now_ns() + epoch_ns)

    def start(self, effect: StartJob) -> None:
        """Begin an attempt."""
        row = effect.row
        attempt = self._attempts[row.job] = Attempt(effect)
        task = self._tasks[row.job] = asyncio.get_running_loop().create_task(self._live(attempt))
        task.add_done_callback(lambda done: self._ended(attempt, done))

    def _ended(self, attempt: Attempt, task: "asyncio.Task[Outcome]") -> None:
        """Whatever ended it, the node is told, for it keeps the row until then. A gateway that ends is not told."""
        if task.cancelled():
            return
        row, error = attempt.row, task.exception()
        if error is None:
            outcome = task.result()
            if outcome.kind == "unfit":
                log.warning("job %s begins anew: %s", row.job, outcome.message)
        elif isinstance(error, CapacityError):
            # Before any work the job has no part in it, and waits for the table or the store to come back.
            outcome = Outcome("broken" if attempt.is_submitted else "refused", error.code, str(error))
        else:
            log.error("job %s, attempt %d broke", row.job, row.attempt, exc_info=error)
            words = f"{type(error).__name__} inside Headway; the log has the story"
            outcome = Outcome("broken", "internal_error", words)
        self._feed(lambda at_ns: JobEnded(at_ns, "run", row.job, row.attempt, outcome))

    def stop(self, effect: StopJob) -> None:
        """End it at the next step boundary, or once that is saved."""
        attempt = self._attempts.get(effect.job)
        if attempt is not None:
            attempt.is_stopped = True
            attempt.is_lost = attempt.is_lost or not effect.saves
            if attempt.is_submitted:
                self._front.cancel(effect.job, saves=effect.saves)

    def made(self, job: RequestId, attempt: int) -> Sequence[StoredOutput]:
        """What a completed attempt stored. Called in the table's thread."""
        return self._stored.get((job, attempt), [])

    def over(self, row_of: RowClosed | RowLost | SpareRow) -> None:
        """An end is written, or is not ours to write. Checkpoints of a completed job have no use any more; one that was
        taken from this attempt while its outputs were stored goes on from them."""
        if stored := self._stored.pop((row_of.job, row_of.attempt), None):
            prefix = stored[0].key.rsplit("/", 2)[0]
            self._tidy(self._clean(prefix) if isinstance(row_of, RowClosed) else self._forget(prefix, row_of.job))

    def _tidy(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def _forget(self, prefix: str, job: RequestId) -> None:
        """What a deleted job's attempt stored after its objects were deleted is nobody's to sweep later."""
        try:
            if await self._tables.ask(lambda: self._tables.node.input(job)) is None:
                await self._store.delete_below(prefix)
        except CapacityError as error:
            log.warning("objects below %s may be of a job that is deleted: %s", prefix, error)

    async def _clean(self, prefix: str) -> None:
        try:
            keys = await self._store.list(prefix)
            await self._store.delete([key for key in keys if key.rpartition("/")[2].startswith(CHECKPOINT)])
        except CapacityError as error:
            log.warning("checkpoints below %s stay until the job expires: %s", prefix, error)

    async def close(self) -> None:
        """Give up what runs: the leases end by themselves."""
        for tasks in (self._tasks.values(), self._cleaning, self.spending.tasks):  # what runs may leave something
            for task in (open_tasks := list(tasks)):
                task.cancel()
            await asyncio.gather(*open_tasks, return_exceptions=True)

    async def _live(self, attempt: Attempt) -> Outcome:
        row = attempt.row
        try:
            outcome = await self._outcome(attempt)
            attempt.outcome = outcome.kind
            return outcome
        finally:
            if attempt.is_submitted:
                self._front.closed(row.job, None, 0, stored_ns=attempt.stored_ns)
            if attempt.is_stopped:
                self._tidy(self._forget(job_prefix(row.tenant, row.job), row.job))
            del self._attempts[row.job], self._tasks[row.job]

    async def _outcome(self, attempt: Attempt) -> Outcome:
        row = attempt.row
        found = await self._tables.ask(lambda: self._tables.node.begin(row.job, row.attempt))
        if found is None:
            return Outcome("interrupted", message="others have it")
        try:
            checkpoint = None if found.checkpoint is None or not row.begun else await self._store.get(found.checkpoint)
        except DamagedObject as error:
            return Outcome("unfit", BAD_CHECKPOINT, str(error))
        if row.begun and checkpoint is None:
            return Outcome("unfit", BAD_CHECKPOINT, f"its checkpoint at step {row.begun} is not in the object store")
        if checkpoint is not None and found.checkpoint is not None:
            attempt.checkpoints.append(found.checkpoint)
        is_free = await self.spending.let_go(row.job)
        if attempt.is_stopped:
            return Outcome("interrupted")
        if not is_free:
            return Outcome("refused", "busy", "its attempt before this one still ends its step here")
        request = self._placed(found, attempt, checkpoint)
        stream = self._front.submit(request, request.arrived_ns, request.arrived_ns)
        attempt.is_submitted = True
        attempt.trace_id = None if request.trace is None else request.trace.trace_id
        self.spending.submitted(attempt)
        end = await self._follow(attempt, request, stream)
        if end.reason is not FinishReason.STOP or end.error is not None:
            return ended(end)
        ended_ns = self._front.now_ns()
        try:
            return await self._kept(attempt, request, end)
        finally:
            attempt.stored_ns = self._front.now_ns() - ended_ns

    def _placed(self, found: JobInput, attempt: Attempt, checkpoint: bytes | None) -> DiffusionRequest:
        """In this run's time, and from where it was. What is in a checkpoint was made by its own steps and model: it
        goes on with those, whatever admission would take away now."""
        request = msgspec.msgpack.decode(found.body, type=DiffusionRequest)
        if checkpoint is not None:
            less = {} if found.degraded is None else msgspec.json.decode(found.degraded, type=dict[Lessened, int | str])
            before = lessened(request, list(less.items()))
            assert isinstance(before, DiffusionRequest)
            request = msgspec.structs.replace(before, allow_degrade=())
        slo = request.slo
        return msgspec.structs.replace(
            request,
            arrived_ns=self._front.now_ns(),
            slo=Slo(
                None if slo.ttft_deadline_ns is None else slo.ttft_deadline_ns - self._epoch_ns,
                slo.tpot_ns,
                None if slo.e2e_deadline_ns is None else slo.e2e_deadline_ns - self._epoch_ns,
            ),
            begun=0 if checkpoint is None else attempt.row.begun,
            checkpoint=checkpoint or b"",
            save_every=attempt.save_every,
        )

    async def _follow(self, attempt: Attempt, request: DiffusionRequest, stream: TokenStream) -> End:
        while True:
            for item in await stream.next():
                if isinstance(item, Show):
                    await self._shown(attempt, request, item)
                elif isinstance(item, Admitted):
                    await self._degraded(attempt, item)
                elif isinstance(item, End):
                    return item

    async def _degraded(self, attempt: Attempt, item: Admitted) -> None:
        row, body = attempt.row, msgspec.json.encode(dict(item.degraded))
        await self._tables.ask(lambda: self._tables.node.degrade(row.job, row.attempt, body))

    async def _shown(self, attempt: Attempt, request: DiffusionRequest, item: Show) -> None:
        row, now_ns = attempt.row, self._front.now_ns()
        attempt.done = max(attempt.done, item.done)
        if attempt.first is None and item.done:
            attempt.first = (item.done, now_ns)
        state: JobState = "denoise" if item.done else "text_encode"
        self._progress(row, "vae_decode" if item.done == item.total else state, attempt.done)
        for made in item.made:
            if made.kind == "checkpoint":
                await self._save(attempt, made, now_ns)
            elif made.kind == "preview":
                await self._preview(attempt, request, made)
            else:
                attempt.made[made.kind, made.index] = made

    def _progress(self, row: JobRow, state: JobState, done: int) -> None:
        self._feed(lambda at_ns: JobProgressed(at_ns, "front", row.job, row.attempt, state, done))

    async def _save(self, attempt: Attempt, made: Made, began_ns: Ns) -> None:
        """Store a checkpoint. One that cannot be stored costs steps after a crash, and nothing else."""
        row, key = attempt.row, attempt.key(f"{CHECKPOINT}{made.steps}", made.body)
        device_ns = attempt.device_ns(began_ns)
        try:
            await self._store.put(key, made.body)
            took_ns = self._front.now_ns() - began_ns
            self._feed(
                lambda at_ns: JobSaved(at_ns, "store", row.job, row.attempt, made.steps, key, took_ns, device_ns)
            )
            attempt.checkpoints.append(key)
            attempt.saved_ns = device_ns
            # The row may still name the one before this; the one before that is named by nobody.
            old, attempt.checkpoints = attempt.checkpoints[:-2], attempt.checkpoints[-2:]
            await self._store.delete(old)
        except CapacityError as error:
            log.warning("job %s: no checkpoint at step %d: %s", row.job, made.steps, error)

    async def _preview(self, attempt: Attempt, request: DiffusionRequest, made: Made) -> None:
        row = attempt.row
        try:
            output = await self._put(attempt, "preview", made, request.content.form)
            await self._tables.ask(lambda: self._tables.node.add_outputs(row.job, row.attempt, [output]))
        except CapacityError as error:
            log.warning("job %s: no preview %d: %s", row.job, made.index, error)

    async def _put(self, attempt: Attempt, kind: OutputKind, made: Made, form: str) -> StoredOutput:
        key = attempt.key(f"{kind}-{made.index}", made.body)
        await self._store.put(key, made.body)
        return StoredOutput(
            kind, made.index, media_type(made.body, form), len(made.body), key, made.seed, read_json(made.read)
        )

    async def _kept(self, attempt: Attempt, request: DiffusionRequest, end: End) -> Outcome:
        """Store what was made, then the row may be completed."""
        row = attempt.row
        self._progress(row, "upload", row.steps)
        stored: list[StoredOutput] = []
        images = 0
        for made in attempt.made.values():
            if made.kind == "video":
                stored.append(await self._put(attempt, "video", made, request.content.form))
                stored += await self._sheets(attempt, made)
            else:
                images += 1
                stored.append(await self._put(attempt, "picture", made, request.content.form))
        wanted = 1 if request.frames > 1 else request.n
        if len(attempt.made) != wanted:
            return Outcome("broken", "internal_error", f"{len(attempt.made)} of {wanted} outputs were made")
        self._stored[row.job, row.attempt] = stored
        device_ns = attempt.device_ns(self._front.now_ns()) if end.marks is None else end.marks.device_ns
        frames = 0 if images else request.frames
        return Outcome("completed", device_ns=device_ns, images=images, frames=frames)

    async def _sheets(self, attempt: Attempt, video: Made) -> list[StoredOutput]:
        made = await asyncio.to_thread(sheets, video.body)
        if made is None:
            return []
        kinds: tuple[tuple[OutputKind, bytes], ...] = (
            ("thumbnail", made.thumbnail),
            ("spritesheet", made.spritesheet),
        )
        stored = []
        for kind, body in kinds:
            key = attempt.key(kind, body)
            await self._store.put(key, body)
            stored.append(StoredOutput(kind, 0, MEDIA_TYPE, len(body), key))
        return stored
