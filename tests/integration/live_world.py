"""A live system for tests: the front in this process, synthetic replicas in processes of their own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from headway.core.effects import Deliver, End
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import DiffusionRequest, LlmRequest, Request, SamplingParams
from headway.cost.llm import StepCostParams
from headway.engines.synthetic.denoise import DenoiserParams
from headway.engines.synthetic.tokens import reference
from headway.live.byte_tokens import EOS, VOCAB_SIZE
from headway.live.clock import Clock
from headway.live.run import CONTROL, FRONT, Live, Plan
from headway.live.spec import (
    DiffusionSpec,
    EngineSettings,
    ExecutorSettings,
    LlmSpec,
    ReplicaSpec,
    SupervisorSettings,
    SyntheticSettings,
)
from headway.live.stores import TelemetrySettings
from headway.sched.fleet.migration import MigrationParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig
from headway.sched.runtime.group import GroupParams

MODEL, PICTURES = ModelId("synthetic"), ModelId("synthetic-diffusion")
PATIENCE_S = 60.0


class Answer(msgspec.Struct):
    """Everything one client got."""

    tokens: list[int]
    end: End


class World:
    """A running system with the questions that tests ask of it."""

    def __init__(self, live: Live, lines: list[tuple[NodeId, str]]) -> None:
        self.live, self.serving, self.lines = live, live.serving, lines
        self._numbers = iter(range(1, 1_000_000))

    def picture(self, steps: int, size: int = 64) -> DiffusionRequest:
        """A toy image request."""
        name = RequestId(f"pic-{next(self._numbers)}")
        return DiffusionRequest(name, TenantId("default"), PICTURES, steps, size, size, 1, self.serving.now_ns())

    def request(self, prompt: tuple[int, ...], max_tokens: int, *, ignore_eos: bool = True) -> LlmRequest:
        """A greedy request with an id of its own."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos)
        name = RequestId(f"req-{next(self._numbers)}")
        return LlmRequest(name, TenantId("default"), MODEL, prompt, sampling, self.serving.now_ns())

    async def ask(self, request: Request, leave_after: int | None = None) -> Answer:
        """Read the whole stream, or leave after so many tokens."""
        now_ns = self.serving.now_ns()
        stream = self.serving.submit(request, now_ns, now_ns)
        tokens: list[int] = []
        while True:
            for item in await asyncio.wait_for(stream.next(), PATIENCE_S):
                if isinstance(item, Deliver):
                    assert item.index == len(tokens), "a gap or a repetition in the stream"
                    tokens += item.tokens
                elif isinstance(item, End):  # a picture is shown before it
                    self.serving.closed(request.id, None, 0)
                    return Answer(tokens, item)
            if leave_after is not None and len(tokens) >= leave_after:
                self.serving.cancel(request.id)
                leave_after = None

    def expected(self, request: LlmRequest) -> list[int]:
        """What the request gives alone."""
        return reference(request.prompt, request.sampling, VOCAB_SIZE, (EOS,))[0]

    def held(self) -> dict[str, int]:
        """Level accounts that are no caches and not empty."""
        return {
            view.name: view.reserved + view.used
            for view, _ in self.serving.accounts()
            if view.kind == "level" and not view.cache and view.reserved + view.used
        }

    async def until(self, claim: Callable[[], bool], what: str) -> None:
        """Wait for a claim to hold; reports come every 20 ms."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while not claim():
            assert loop.time() < deadline, f"never: {what}; said so far: {self.lines[-20:]}"
            await asyncio.get_running_loop().run_in_executor(None, _pause)


def _pause() -> None:
    import threading

    threading.Event().wait(0.01)


def llm_replica(
    name: str, folder: Path | None = None, step_us: float = 500.0, depth: int = 2, group: GroupParams | None = None
) -> ReplicaSpec:
    """A synthetic LLM replica."""
    llm = LlmSpec(
        folder=None,
        cache="",
        engine=EngineSettings(
            kind="synthetic", block_size=16, kv_blocks=256, synthetic=SyntheticSettings(step_us, 1.0)
        ),
        scheduler=LlmParams(async_depth=depth, max_seqs=16, step_tokens=512),
        cost=StepCostParams(),
        executor=ExecutorSettings(),
    )
    logs = None if folder is None else str(folder)
    listeners = (FRONT, CONTROL)
    return ReplicaSpec(NodeId(name), MODEL, listeners, CONTROL, llm, group=group, event_logs=logs, drain_s=1.0)


def diffusion_replica(name: str, folder: Path | None = None) -> ReplicaSpec:
    """A toy diffusion replica."""
    logs = None if folder is None else str(folder)
    spec = DiffusionSpec(denoiser=DenoiserParams(step_ns=2_000_000, pixel_ns=0.0))
    return ReplicaSpec(NodeId(name), PICTURES, (FRONT, CONTROL), CONTROL, diffusion=spec, event_logs=logs, drain_s=1.0)


def _has_reported(live: Live, node: NodeId) -> bool:
    return live.board.replicas[node].report is not None


@contextlib.asynccontextmanager
async def running(
    *replicas: ReplicaSpec,
    folder: Path | None = None,
    restarts_max: int = 5,
    silence_s: float = 30.0,
    front: FrontConfig = FrontConfig(),  # noqa: B008  frozen
    migration: MigrationParams | None = None,
) -> AsyncIterator[World]:
    """Start, hand over, stop; afterwards the nodes must agree with themselves."""
    plan = Plan(
        replicas,
        front,
        migration,
        TelemetrySettings(event_logs=None if folder is None else str(folder)),
        SupervisorSettings(silence_s, restarts_max=restarts_max, restart_backoff_s=0.05, drain_s=1.0),
        {spec.group.group: spec.group.members for spec in replicas if spec.group is not None},
    )
    lines: list[tuple[NodeId, str]] = []
    live = Live(plan, Clock(), lambda node, line: lines.append((node, line)))
    try:
        await asyncio.wait_for(live.start(), PATIENCE_S)
        world = World(live, lines)
        for spec in replicas:  # a burst before a replica's first report goes to those that have reported
            await world.until(partial(_has_reported, live, spec.node), f"{spec.node} reports")
        yield world
        live.check()
    finally:
        await live.stop()


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run one test coroutine to its end."""

    async def main() -> None:
        await test()

    asyncio.run(main())
