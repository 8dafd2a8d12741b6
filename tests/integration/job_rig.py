"""A job desk before a front that paints step by step in this process, as fast or as slowly as a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import msgspec

from headway.adapters.gateway.job_ports import Durable, IdempotencyKey, JobKind, JobView, NewJob
from headway.adapters.storage.settings import StorageSettings
from headway.adapters.webhooks.settings import WebhookSettings
from headway.core.effects import Admitted, End, ErrorOut, Show
from headway.core.errors import ConfigError
from headway.core.evidence import EvidenceRecord, FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest, FinishReason, Request
from headway.core.units import NS_PER_S, Ns
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.live.clock import Clock
from headway.live.jobs import JobDesk
from headway.live.jobs_settings import JobSettings
from headway.live.streams import Stream
from headway.sched.admission.protocol import Lessened, lessened
from headway.sched.jobs.params import BackoffParams, CheckpointParams, HookParams

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
TENANT, MODEL = TenantId("acme"), ModelId("wan")
PATIENCE_S = 30.0
STEP_NS = NS_PER_S // 5  # of the device


class Painter:
    """`FrontDoor`. `held`: steps that may be done until the test allows more; `ends`: errors to answer with first. What
    comes after its deadline is answered as FrontNode answers it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now_ns = clock.now_ns
        self.submitted: list[DiffusionRequest] = []
        self.cancelled: list[RequestId] = []
        self.open: dict[RequestId, asyncio.Task[None]] = {}
        self.ends: list[ErrorOut] = []
        self.held: int | None = None
        self.is_deep = False  # in a step that takes longer than anybody waits
        self.leaving: set[RequestId] = set()
        self.steps: dict[RequestId, int] = {}  # that ran, of the request that is open
        self.record: Callable[[EvidenceRecord], None] = lambda _: None
        self._go = asyncio.Event()

    def hold(self, step: int | None) -> None:
        """Nobody comes further than this step; None: everybody goes on."""
        self.held = step
        self._go.set()
        self._go = asyncio.Event()

    def submit(self, request: Request, received_ns: Ns, body_ns: Ns) -> Stream:
        """Paint it in a task."""
        assert isinstance(request, DiffusionRequest)
        assert request.id not in self.open, "submitted twice"
        self.submitted.append(request)
        self.leaving.discard(request.id)
        self.steps[request.id] = 0
        stream = Stream()
        self.open[request.id] = asyncio.get_running_loop().create_task(self._paint(request, stream))
        return stream

    async def _paint(self, request: DiffusionRequest, stream: Stream) -> None:
        denoiser = SyntheticDenoiser(DenoiserParams(step_ns=0, pixel_ns=0.0))
        try:
            if self.ends:
                marks = WorkerMarks(NodeId("rep-0"), 0, steps=2, device_ns=2 * STEP_NS)
                stream.put(End(request.id, FinishReason.REJECTED, self.ends.pop(0), marks=marks))
                return
            due_ns = request.slo.e2e_deadline_ns
            if due_ns is not None and due_ns <= self.now_ns():
                late = ErrorOut(408, "deadline_passed", "its end-to-end deadline passed in the queue")
                stream.put(End(request.id, FinishReason.DEADLINE, late))
                return
            if request.allow_degrade:
                left: list[tuple[Lessened, int | str]] = [("model", "wan-small"), ("steps", 8)]
                request = lessened(request, left)
                stream.put(Admitted(request.id, tuple(left)))
            new: tuple[NewDenoise, ...] = (NewDenoise(1, request),)
            for step in range(request.begun, request.steps):
                while self.held is not None and step >= self.held and request.id not in self.leaving:
                    await self._go.wait()
                done = step + 1
                is_due = request.save_every and done % request.save_every == 0
                is_last = request.id in self.leaving and done < request.steps
                save = (1,) if is_due or is_last else ()
                show = (1,) if request.content.previews and done == request.steps // 2 else ()
                row = DenoiseRow(1, step, 1, request.steps, request.n)
                plan = DenoisePlan(done, step, (row,), request.height, request.width, new=new, save=save, show=show)
                ran, new = denoiser.run(plan), ()
                self.steps[request.id] += 1
                if ran.failed:
                    fault = ran.failed[0]
                    stream.put(End(request.id, FinishReason.REJECTED, ErrorOut(400, fault.code, fault.message)))
                    return
                made = ran.made
                stream.put(Show(request.id, done, request.steps, made[0].made if made else ()))
                if is_last:
                    stream.put(End(request.id, FinishReason.CANCELLED))
                    return
                await asyncio.sleep(0)
            marks = WorkerMarks(NodeId("rep-0"), 0, device_ns=2 * NS_PER_S)
            stream.put(End(request.id, FinishReason.STOP, marks=marks))
        except asyncio.CancelledError:
            stream.put(End(request.id, FinishReason.CANCELLED))

    def cancel(self, request: RequestId, *, saves: bool = False) -> None:
        """At the next step boundary, or once the next step is saved."""
        self.cancelled.append(request)
        if self.is_deep:
            return
        if saves:
            self.leaving.add(request)
            self.hold(self.held)  # who waits looks again
        else:
            self.open[request].cancel()

    def closed(self, request: RequestId, first_token_ns: Ns | None, input_bytes: int, *, stored_ns: Ns = 0) -> None:
        """Its reader is done."""
        self.open.pop(request).cancel()
        steps = self.steps.pop(request)
        model = next(one.model for one in reversed(self.submitted) if one.id == request)
        now_ns = self.now_ns()
        came_ns = now_ns - stored_ns  # as if nothing but storing had taken time
        marks = FrontMarks(request, TENANT, came_ns, came_ns, came_ns, came_ns, None, came_ns, now_ns, 0)
        marks = msgspec.structs.replace(marks, stored_ns=stored_ns)
        worker = WorkerMarks(NodeId("rep-0"), 0, steps=steps, device_ns=steps * STEP_NS)
        self.record(evidence_record(msgspec.structs.replace(marks, model=model), worker))


class Rig:
    """A desk that runs."""

    def __init__(self, desk: JobDesk, painter: Painter, folder: Path) -> None:
        self.desk, self.painter, self.folder = desk, painter, folder
        self.store = desk.store
        self.durable: Durable = desk.durable()
        self.jobs = self.durable.jobs

    def new(self, job: str, kind: JobKind = "video", **changes: object) -> NewJob:
        """Ten steps; `changes` are of the request, or `key` and `webhook_url`."""
        key, hook = changes.pop("key", None), changes.pop("webhook_url", None)
        content = Content(f"cat {job}", form="mp4" if kind == "video" else "png")
        request = DiffusionRequest(RequestId(job), TENANT, MODEL, 10, 32, 32, 7, self.painter.now_ns(), content=content)
        if kind == "video":
            request = msgspec.structs.replace(request, frames=4, fps=2)
        request = msgspec.structs.replace(request, **changes)
        assert key is None or isinstance(key, IdempotencyKey)
        assert hook is None or isinstance(hook, str)
        return NewJob(kind, request, b'{"prompt": "cat"}', 10.0, key, hook)

    async def view(self, job: str) -> JobView:
        """As its owner sees it."""
        found = await self.jobs.get(job, TENANT)
        assert found is not None
        return found

    async def until(self, claim: Callable[[], Coroutine[None, None, bool]], what: str) -> None:
        """Wait for it."""
        async with asyncio.timeout(PATIENCE_S):
            while not await claim():
                await asyncio.get_running_loop().run_in_executor(None, _pause)

    async def over(self, job: str) -> JobView:
        """Wait for its end."""
        await self.until(lambda: self._is_over(job), f"{job} is over")
        return await self.view(job)

    async def _is_over(self, job: str) -> bool:
        return (await self.view(job)).status in ("completed", "failed")

    async def at(self, job: str, progress: int) -> None:
        """Wait until the table says so."""

        async def is_there() -> bool:
            return (await self.view(job)).progress >= progress

        await self.until(is_there, f"{job} is at {progress} %")

    def objects(self) -> list[str]:
        """What is in the store."""
        root = self.folder / "objects"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _pause() -> None:
    import threading

    threading.Event().wait(0.01)


def settings(folder: Path, **changes: object) -> JobSettings:
    """Everything as quick as it may be."""
    quick = JobSettings(
        url=f"sqlite:///{folder / 'jobs.db'}",
        progress_s=0.1,
        lease_s=3.0,  # the machine that runs this may stop for a while
        poll_s=0.05,
        previews=1,
        backoff=BackoffParams(0.01, 0.05),
        checkpoint=CheckpointParams(failure_every_s=100.0, save_ms=20.0),
        hooks=HookParams(backoff=BackoffParams(0.01, 0.05)),
        webhooks=WebhookSettings({"*": SECRET}, ("127.0.0.0/8",)),
    )
    return msgspec.structs.replace(quick, **changes)


@contextlib.asynccontextmanager
async def desk(
    folder: Path,
    given: JobSettings | None = None,
    storage: StorageSettings | None = None,
    grace_s: float = 10.0,
    clock: Clock | None = None,
) -> AsyncIterator[Rig]:
    """Open, begin, stop."""
    clock = clock or Clock()
    painter = Painter(clock)
    opened = JobDesk(given or settings(folder), storage or StorageSettings(), painter, clock, grace_s)
    painter.record = opened.observe
    try:
        await opened.open()
    except ConfigError:
        await opened.close()
        raise
    opened.begin()
    try:
        yield Rig(opened, painter, folder)
    finally:
        await opened.stop(grace_s)
        await opened.close()
