"""A job on the video model of this repository: the desk, the scheduler and the engine are the real ones."""

import asyncio
import threading
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from tests.integration.job_rig import MODEL, TENANT, settings

from headway.adapters.gateway.job_ports import Body, JobView, NewJob
from headway.adapters.storage.settings import StorageSettings
from headway.core.artifacts import Denoised
from headway.core.effects import Effect, End, RunDenoise, Send, Show
from headway.core.events import DenoiseDone, Event, MessageArrived, PeerJoined
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Artifacts, Cancel, Finished, Progress, Submit
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest, Request
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.jobs import JobDesk
from headway.live.streams import Stream
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.jobs.params import CheckpointParams
from headway.sched.nodes import DiffusionNode, Membership, WorkerConfig

VIDEO = Path(__file__).parents[2] / "models/tiny/video"
FRONT, REPLICA = NodeId("front-0"), NodeId("rep-0")
PATIENCE_S = 120.0
STEPS, HELD = 10, 4  # the fourth step of ten is held on the device

pytestmark = pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed: no real engine")


class Device:
    """The engine, whose forward passes are counted; one of them waits until the test lets it go on."""

    def __init__(self) -> None:
        from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
        from headway.engines.diffusion.loading import LoadSettings, load

        loaded = load(LoadSettings(VIDEO, device="cpu"))
        self.engine = DiffusionEngine(loaded, RunSettings(), lambda: 0)
        self.passes = 0
        self.is_held, self.go_on = threading.Event(), threading.Event()
        loaded.pipeline.transformer.register_forward_pre_hook(self._counted)

    def _counted(self, *_: object) -> None:
        self.passes += 1
        if self.passes == HELD:
            self.is_held.set()
            assert self.go_on.wait(60)


class Door:
    """`FrontDoor`: one replica's node, and the device behind it."""

    def __init__(self, clock: Clock, device: Device) -> None:
        self.now_ns, self._device = clock.now_ns, device
        member = Membership(REPLICA, 1, (FRONT,))
        self._node = DiffusionNode(member, DiffusionMachine(DiffusionParams()), str(MODEL), WorkerConfig())
        self._streams: dict[RequestId, Stream] = {}
        self._totals: dict[RequestId, int] = {}
        self.plans: list[DenoisePlan] = []
        self.ran: asyncio.Queue[int] = asyncio.Queue()  # plans that are over
        self._handle(PeerJoined(0, "test", FRONT, 1))

    def submit(self, request: Request, received_ns: Ns, body_ns: Ns) -> Stream:
        assert isinstance(request, DiffusionRequest)
        stream = self._streams[request.id] = Stream()
        self._totals[request.id] = request.steps
        self._handle(MessageArrived(self.now_ns(), "test", FRONT, Submit(request, 1, number=1)))
        return stream

    def cancel(self, request: RequestId, *, saves: bool = False) -> None:
        self._handle(MessageArrived(self.now_ns(), "test", FRONT, Cancel(request, 1, saves=saves)))

    def closed(self, request: RequestId, first_token_ns: Ns | None, input_bytes: int, *, stored_ns: Ns = 0) -> None:
        del self._streams[request]

    def _handle(self, event: Event) -> None:
        for effect in self._node.handle(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, RunDenoise):
            self.plans.append(effect.plan)
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(None, self._device.engine.run, effect.plan)
            running.add_done_callback(lambda done: self._ran(effect.plan, done.result()))
        elif isinstance(effect, Send):
            match effect.message:
                case Progress(request, _, done, total):
                    self._streams[request].put(Show(request, done, total))
                case Artifacts(request, _, made):
                    self._streams[request].put(Show(request, made[0].steps, self._totals[request], made))
                case Finished(request, _, reason, _, marks):
                    self._streams[request].put(End(request, reason, marks=marks))
                case _:
                    pass

    def _ran(self, plan: DenoisePlan, ran: Denoised) -> None:
        done = DenoiseDone(self.now_ns(), "test", plan.step, ran.timing, ran.stages, ran.made, ran.failed)
        self._handle(done)
        self.ran.put_nowait(plan.step)


def film(clock: Clock) -> NewJob:
    request = DiffusionRequest(
        RequestId("video_1"),
        TENANT,
        MODEL,
        STEPS,
        64,
        64,
        7,
        clock.now_ns(),
        frames=8,
        fps=2,
        guidance_scale=1.0,
        passes=1,
        content=Content("a red circle moves right on a white background", form="mp4"),
    )
    return NewJob("video", request, b"{}", 1.0)


# SPEC H2; vllm-omni#6403: the GPU went on after a DELETE
def test_cancel_of_a_running_job_lets_the_device_end_its_step_and_begin_no_other(tmp_path: Path) -> None:
    async def test() -> tuple[JobView, int, int]:
        clock, device = Clock(), Device()
        door = Door(clock, device)
        desk = JobDesk(msgspec.structs.replace(settings(tmp_path), lease_s=60.0), StorageSettings(), door, clock)
        await desk.open()
        desk.begin()
        jobs = desk.durable().jobs
        await jobs.create(film(clock))
        assert await asyncio.to_thread(device.is_held.wait, PATIENCE_S)
        assert device.passes == HELD
        view = await jobs.cancel("video_1", TENANT)
        device.go_on.set()  # the pass that was under way when it was cancelled
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(HELD):
                await door.ran.get()
        await desk.stop(PATIENCE_S)
        await desk.close()
        assert view is not None
        return view, device.passes, len(door.plans)

    view, passes, plans = asyncio.run(test())
    assert (view.status, view.error and view.error.code) == ("failed", "cancelled")
    assert (passes, plans) == (HELD, HELD)


# SPEC H3, F6: what a gateway that ends has computed is kept, though no checkpoint was due
def test_a_desk_that_ends_saves_the_step_under_way_and_the_next_process_computes_only_the_rest(tmp_path: Path) -> None:
    rare = msgspec.structs.replace(
        settings(tmp_path), lease_s=60.0, checkpoint=CheckpointParams(failure_every_s=1e9), previews=0
    )

    async def ended_in_its_fourth_step() -> tuple[int, DiffusionRequest]:
        clock, device = Clock(), Device()
        door = Door(clock, device)
        desk = JobDesk(rare, StorageSettings(), door, clock)
        await desk.open()
        desk.begin()
        await desk.durable().jobs.create(film(clock))
        assert await asyncio.to_thread(device.is_held.wait, PATIENCE_S)
        ending = asyncio.create_task(desk.stop(PATIENCE_S))
        await asyncio.sleep(0)  # it has begun to end
        device.go_on.set()
        await ending
        await desk.close()
        return device.passes, door.plans[0].new[0].request

    async def gone_on() -> tuple[int, int, JobView | None, Body | None]:
        clock, device = Clock(), Device()
        device.go_on.set()
        door = Door(clock, device)
        desk = JobDesk(rare, StorageSettings(), door, clock)
        await desk.open()
        desk.begin()
        jobs = desk.durable().jobs
        async with asyncio.timeout(PATIENCE_S):
            while (view := await jobs.get("video_1", TENANT)) is not None and view.status != "completed":
                await asyncio.to_thread(threading.Event().wait, 0.02)
        body = await jobs.content("video_1", TENANT, "video")
        await desk.stop(PATIENCE_S)
        await desk.close()
        return door.plans[0].new[0].request.begun, device.passes, view, body

    passes, request = asyncio.run(ended_in_its_fourth_step())
    assert (request.save_every, passes) == (0, HELD + 1)
    begun, rest, view, body = asyncio.run(gone_on())
    assert (begun, passes + rest) == (HELD + 1, STEPS)
    assert view is not None
    assert (view.status, view.attempts, view.restarts) == ("completed", 2, 0)
    alone = Device()
    alone.go_on.set()
    row = DenoiseRow(1, 0, STEPS, STEPS)
    whole = DenoisePlan(1, 0, (row,), 64, 64, shape=request.shape, new=(NewDenoise(1, request),))
    assert body is not None
    assert body.body == alone.engine.run(whole).made[0].made[-1].body
