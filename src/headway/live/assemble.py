"""The only place that joins `sched` and `engines`: builds a replica's engine and its node from the start order."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from headway.core.errors import ConfigError
from headway.core.ports import CountsMemory, DenoiseEngine, LlmEngine, ModelLimits, Node
from headway.core.reports import DenoiseCoefficients, DenoiseMemory, StepCoefficients, WarmShape
from headway.core.units import NS_PER_MS, Ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.llm import MeasuredStep, StepCost
from headway.engines.synthetic.denoise import SyntheticDenoiser
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.live.byte_tokens import EOS, VOCAB_SIZE
from headway.live.denoise_warmup import Warm
from headway.live.eventlog import EventLog
from headway.live.host_memory import host_memory, room_of
from headway.live.rows_seen import ring_buckets
from headway.live.spec import DiffusionSpec, LlmSpec, PipelineSpec, ReplicaSpec
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import ShapeCap, shape_sides
from headway.sched.diffusion.warmth import Warmth
from headway.sched.executor.buckets import captured_rows
from headway.sched.llm.machine import LlmMachine
from headway.sched.nodes import DiffusionNode, Membership, WorkerConfig, WorkerNode

MIB: Final = 1 << 20
REPORT_SLACK_NS: Final = 20 * NS_PER_MS
SYNTHETIC_LENGTH: Final = 8192
SYNTHETIC_BLOCKS: Final = 4096


class IsIdle(Protocol):
    """True when a node holds no request."""

    def __call__(self) -> bool: ...


class BuiltNode(msgspec.Struct, frozen=True):
    """A node and whether it is idle."""

    node: Node
    is_idle: IsIdle
    step_cost: StepCoefficients | None = None  # what its LLM steps are believed to cost


class Recipe(msgspec.Struct, frozen=True):
    """All that a node is built from; kept beside its event log, so that a fresh one can replay it."""

    spec: ReplicaSpec
    incarnation: int
    limits: ModelLimits | None
    cost: DenoiseCoefficients | None = None  # of a diffusion replica, as it was measured
    memory: DenoiseMemory | None = None  # the same
    warm: tuple[WarmShape, ...] | None = None  # the same: what has run
    steps: tuple[MeasuredStep, ...] = ()  # of an LLM replica, that its warm-up measured


def build_node(recipe: Recipe) -> BuiltNode:
    """The node of a replica. Raises ConfigError for combinations that cannot work."""
    spec = recipe.spec
    if spec.llm is not None and recipe.limits is not None:
        return _llm_node(recipe, spec.llm, recipe.limits)
    if spec.diffusion is not None:
        cost = recipe.cost or spec.diffusion.cost
        pipeline, memory = spec.diffusion.pipeline, recipe.memory or spec.diffusion.memory
        cache = None if pipeline is None else pipeline.cache_mb * MIB
        holdings = Holdings(spec.node, memory, cost, cache)
        belief, warmth = None if cost is None else DenoiseCost(cost), _warmth(recipe, spec.diffusion)
        if belief is not None:
            belief.begin(recipe.warm or ())
        machine = DiffusionMachine(spec.diffusion.machine, belief, holdings, warmth)
        config = WorkerConfig(report_interval_ms=spec.diffusion.report_interval_ms)
        node = DiffusionNode(_membership(recipe), machine, spec.model, config, spec.diffusion.stock)
        return BuiltNode(node, lambda: node.worker.is_idle)
    raise ConfigError(f"replica {spec.node} has neither an LLM nor a diffusion part")


def _warmth(recipe: Recipe, diffusion: DiffusionSpec) -> Warmth:
    return Warmth(recipe.warm, refuses_new=diffusion.machine.new_shapes == "refuse")


def warmed(recipe: Recipe, warm: Warm) -> Recipe:
    """With what the warm-up of a denoiser found: what its work costs and holds, and batches no larger than fit."""
    spec = recipe.spec
    if spec.diffusion is None:
        return recipe
    machine = spec.diffusion.machine
    fit = {shape_sides(shape): most for shape, most in warm.caps}
    kept = [cap for cap in machine.caps if (cap.height, cap.width, cap.frames) not in fit]
    caps = (*kept, *(ShapeCap(height, width, most, frames) for (height, width, frames), most in fit.items()))
    diffusion = msgspec.structs.replace(spec.diffusion, machine=msgspec.structs.replace(machine, caps=caps))
    spec = msgspec.structs.replace(spec, diffusion=diffusion)
    return msgspec.structs.replace(recipe, spec=spec, cost=warm.cost, memory=warm.memory, warm=warm.shapes)


def _membership(recipe: Recipe) -> Membership:
    spec = recipe.spec
    return Membership(spec.node, recipe.incarnation, spec.listeners, spec.control, REPORT_SLACK_NS)


def _llm_node(recipe: Recipe, llm: LlmSpec, limits: ModelLimits) -> BuiltNode:
    spec = recipe.spec
    cost = llm.cost
    if not cost.kv_bytes_per_block:
        cost = msgspec.structs.replace(cost, kv_bytes_per_block=limits.kv_bytes_per_block)
    belief = StepCost(cost)
    belief.begin(recipe.steps)
    machine = LlmMachine(llm.scheduler, limits, belief, spec.node)
    node = WorkerNode(_membership(recipe), machine, limits, worker_config(llm), spec.group)
    node.worker.rates.begin(recipe.steps)
    return BuiltNode(node, lambda: machine.live == 0, machine.step_cost)


def open_replica_log(recipe: Recipe) -> EventLog | None:
    """The node's event log with its recipe beside it, where the spec asks for one."""
    folder = recipe.spec.event_logs
    if folder is None:
        return None
    stem = Path(folder) / f"{recipe.spec.node}-{recipe.incarnation}"
    stem.with_suffix(".recipe").write_bytes(msgspec.msgpack.encode(recipe))
    return EventLog(stem.with_suffix(".events"))


def worker_config(llm: LlmSpec) -> WorkerConfig:
    """What a replica's node is told beside its machine's parameters."""
    executor = llm.executor
    return WorkerConfig(
        credits=llm.scheduler.async_depth,
        pace=executor.pace,
        buckets=ring_buckets(llm),
        report_interval_ms=executor.report_interval_ms,
        transfer=executor.transfer,
        orphan_grace_s=executor.orphan_grace_s,
        failures_max=executor.failures_max,
    )


def load_llm(
    spec: ReplicaSpec, llm: LlmSpec, clock: Callable[[], Ns], tell: Callable[[str, float, str], None]
) -> LlmEngine:
    """Load the engine; `tell(phase, done, note)` hears the phases. Runs outside the event loop."""
    if llm.engine.kind == "synthetic":
        return _synthetic(spec, llm, clock)
    return _load_torch(spec, llm, clock, tell)


def room_beside(pipeline: PipelineSpec, engine: DenoiseEngine) -> int | None:
    """Bytes for the work of an engine that has loaded its weights; None: nothing tells."""
    if pipeline.memory_bytes is not None:
        return pipeline.memory_bytes
    counts = engine if isinstance(engine, CountsMemory) else None
    beside = 0 if counts is None else counts.stage_bytes()  # first: what they take is free before
    memory = (None if counts is None else counts.device_memory()) or host_memory()
    if memory is None:
        return None
    return room_of(msgspec.structs.replace(memory, held=memory.held + beside), pipeline.sharers)


def load_denoiser(spec: ReplicaSpec, clock: Callable[[], Ns], tell: Callable[[str, float, str], None]) -> DenoiseEngine:
    """Load the engine of a diffusion replica; `tell(phase, done, note)` hears the phases. Outside the event loop."""
    if spec.diffusion is None:
        raise ConfigError(f"replica {spec.node} has neither an LLM nor a diffusion part")
    if spec.diffusion.pipeline is None:
        return SyntheticDenoiser(spec.diffusion.denoiser, clock)
    return _load_pipeline(spec.diffusion.pipeline, clock, tell)


def _load_pipeline(
    pipeline: PipelineSpec, clock: Callable[[], Ns], tell: Callable[[str, float, str], None]
) -> DenoiseEngine:
    tell("import", 0.0, "diffusers")
    try:
        from headway.engines.diffusion.engine import RunSettings
        from headway.engines.diffusion.ip_adapter import adapter_settings
        from headway.engines.diffusion.loading import LoadSettings
        from headway.engines.diffusion.stage_process import Patience
        from headway.engines.diffusion.start import StageCounts, start_engine
    except ImportError as error:
        raise ConfigError(
            f"diffusion.engine = 'torch' needs torch and diffusers ({error}); pip install -e '.[diffusion]' in the "
            "clone, `headway doctor` says what is missing; diffusion.engine = 'synthetic' works without"
        ) from error
    tell("load", 0.0, Path(pipeline.folder).name)
    settings = LoadSettings(Path(pipeline.folder), pipeline.device, pipeline.dtype, pipeline.threads)
    adapter = adapter_settings(pipeline.ip_adapter, pipeline.image_encoder)
    settings = msgspec.structs.replace(settings, adapter=adapter)
    watch = pipeline.stage_watchdog
    patience = None if watch is None else Patience(watch.factor, watch.floor_s, watch.load_s)
    counts = StageCounts(
        text=pipeline.text_processes,
        encode=pipeline.encode_processes,
        decode=pipeline.decode_processes,
        patience=patience,
    )
    run = RunSettings(pipeline.cache_mb, pipeline.tile_pixels, pipeline.guidance_scale, pipeline.chunks)
    engine = start_engine(settings, run, counts, clock)
    tell("load", 1.0, engine.description)
    return engine


def _synthetic(spec: ReplicaSpec, llm: LlmSpec, clock: Callable[[], Ns]) -> LlmEngine:
    engine, device = llm.engine, llm.engine.synthetic
    return SyntheticEngine(
        SyntheticParams(
            model=spec.model,
            vocab_size=VOCAB_SIZE,
            max_model_len=engine.max_model_len or SYNTHETIC_LENGTH,
            block_size=engine.block_size,
            kv_blocks=engine.kv_blocks or SYNTHETIC_BLOCKS,
            host_slots=engine.host_slots,
            eos_token_ids=(EOS,),
            step_s=device.step_us / 1e6,
            token_s=device.token_us / 1e6,
        ),
        clock,
    )


def _load_torch(
    spec: ReplicaSpec, llm: LlmSpec, clock: Callable[[], Ns], tell: Callable[[str, float, str], None]
) -> LlmEngine:
    tell("import", 0.0, "torch")
    # torch is imported only where a torch engine runs: everything else works in an environment without it.
    try:
        from headway.engines.llm.config import read_config
        from headway.engines.llm.loading import EngineSettings as TorchSettings
        from headway.engines.llm.start import start_engine
    except ImportError as error:
        raise ConfigError(
            f"engine.kind = 'torch' needs torch ({error}); `headway doctor` says how to get it, "
            "engine.kind = 'synthetic' works without"
        ) from error

    engine, captured = llm.engine, captured_rows(ring_buckets(llm), llm.scheduler.max_seqs)
    if llm.folder is None:
        raise ConfigError(f"replica {spec.node}: engine.kind = 'torch' needs a model folder")
    model = read_config(Path(llm.folder))
    block_bytes = 2 * model.layers * engine.block_size * model.kv_heads * model.head_dim * 4
    kv_blocks = engine.kv_blocks if engine.kv_blocks is not None else engine.kv_memory_mb * MIB // block_bytes
    tell("load", 0.0, f"{kv_blocks} KV blocks of {engine.block_size} tokens")
    built = start_engine(
        TorchSettings(
            folder=Path(llm.folder),
            model=spec.model,
            cache=Path(llm.cache),
            kv_blocks=kv_blocks,
            block_size=engine.block_size,
            host_slots=engine.host_slots,
            max_model_len=engine.max_model_len,
            max_step_tokens=llm.scheduler.step_tokens,
            threads=engine.threads or 1,
            dtype=engine.dtype,
            kernels=engine.kernels,
            graph_rows=captured.whole,
            piece_rows=captured.pieces,
        ),
        engine.device,
        clock,
    )
    tell("load", 1.0, built.description)
    return built
