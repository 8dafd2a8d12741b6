"""What a replica process is told at its start, and how its supervisor treats it."""

from typing import Annotated, Literal

import msgspec

from headway.core.graphs import GraphMode
from headway.core.ids import ModelId, NodeId
from headway.core.reports import DenoiseCoefficients, DenoiseMemory
from headway.core.units import Ns
from headway.cost.llm import StepCostParams
from headway.engines.synthetic.denoise import DenoiserParams
from headway.live.denoise_warmup import Probes
from headway.sched.diffusion.params import DiffusionParams, StageWatchdog
from headway.sched.diffusion.warming import Stock
from headway.sched.executor.buckets import Buckets
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sched.runtime.group import GroupParams
from headway.sched.transfer.outgoing import TransferParams

Sizes = tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
EngineKind = Literal["torch", "synthetic"]


class SyntheticSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The virtual device of `engine.kind = "synthetic"`: tokens are a hash, a step takes a fixed time."""

    step_us: Annotated[float, msgspec.Meta(ge=0)] = 2000.0  # of every step
    token_us: Annotated[float, msgspec.Meta(ge=0)] = 20.0  # added per token of the step


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica computes."""

    kind: EngineKind = "torch"  # synthetic: no model, deterministic tokens, for tests and demonstrations
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of one replica; unset: cores / replicas
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda where it is; that path has not run on a device yet
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: by what the processor is fast at
    kernels: Literal["auto", "native", "torch"] = "auto"  # native: our C++ kernels, compiled on first use
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 32  # tokens per KV block
    kv_memory_mb: Annotated[int, msgspec.Meta(ge=1)] = 2048  # per replica, for KV blocks
    kv_blocks: Annotated[int, msgspec.Meta(ge=2)] | None = None  # unset: as many as kv_memory_mb holds
    host_slots: Annotated[int, msgspec.Meta(ge=0)] = 0  # swap space, in blocks
    max_model_len: Annotated[int, msgspec.Meta(ge=2)] | None = None  # unset: what the model was made for
    synthetic: SyntheticSettings = SyntheticSettings()


class SupervisorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How replica processes are watched."""

    heartbeat_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # a silent replica is killed and started again
    start_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 180.0  # the same while it starts: imports hold it up
    restarts_max: Annotated[int, msgspec.Meta(ge=0)] = 5  # within the window; more, and the replica stays down
    restart_window_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0  # over which restarts are counted
    restart_backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5  # before the first restart; doubles with each
    restart_backoff_s_max: Annotated[float, msgspec.Meta(ge=0)] = 30.0  # doubling ends here
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # how long running requests may go on after SIGTERM


class BucketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes that the executor prepares, and how it launches each kind of step."""

    rows: Sizes | Literal["auto"] = ()  # steps are padded to these; auto: chosen at each start from earlier steps
    sizes_max: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16  # with rows = auto, most that are chosen
    graph_mode: GraphMode = "none"  # how steps are launched; with another than none, only captured ones are padded

    def __post_init__(self) -> None:
        if isinstance(self.rows, tuple):
            Buckets(self.rows, self.graph_mode)  # raises ConfigError


class ExecutorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica's node feeds its engine. Steps in flight are `scheduler.async_depth`."""

    pace: PolicyChoice = PolicyChoice("on_launch")  # when to plan the next step
    buckets: BucketSettings = BucketSettings()
    settle_passes_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4  # repeated warm-ups until device memory is steady
    report_interval_ms: Annotated[float, msgspec.Meta(gt=0)] = 20.0  # a front hears of a replica at most so often
    transfer: TransferParams = TransferParams()
    orphan_grace_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # requests of a front that is gone are kept so long
    failures_max: Annotated[int, msgspec.Meta(ge=0)] = 3  # failed steps in a row before requests are given up


class LlmSpec(msgspec.Struct, frozen=True):
    """What an LLM replica runs."""

    folder: str | None  # of the model; None with the synthetic engine
    cache: str
    engine: EngineSettings
    scheduler: LlmParams
    cost: StepCostParams
    executor: ExecutorSettings


class PipelineSpec(msgspec.Struct, frozen=True):
    """A diffusers pipeline and how it computes."""

    folder: str
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["auto", "float32", "bfloat16"]
    threads: int
    cache_mb: int
    tile_pixels: int | None
    guidance_scale: float | None = None  # of a request that names none; None: the family's
    text_processes: int = 0
    encode_processes: int = 0
    decode_processes: int = 0
    memory_bytes: int | None = None  # of one replica beside its weights; None: its share of what its device has
    pictures_max: int | None = None  # of one forward pass, whatever the size; None: any
    sharers: int = 1  # replicas of that device, this one included
    ip_adapter: str | None = None  # that takes image prompts
    image_encoder: str | None = None  # of it; None: where it usually is
    chunks: tuple[tuple[int, int, int], ...] = ()  # of streaming sessions: frames, given ones, those handed on
    stage_watchdog: StageWatchdog | None = None  # None: processes of stages may hang for ever


class DiffusionSpec(msgspec.Struct, frozen=True):
    """What a diffusion replica runs: a pipeline, or without one the virtual device."""

    machine: DiffusionParams = DiffusionParams()
    denoiser: DenoiserParams = DenoiserParams()
    cost: DenoiseCoefficients | None = None  # believed at first, corrected by what plans take; None: no belief
    pipeline: PipelineSpec | None = None
    probes: Probes | None = None  # that correct `cost` before the replica is ready
    stock: Stock = Stock()  # the shapes of its model, those of other shape pools included
    memory: DenoiseMemory | None = None  # what work holds, of the virtual device; of a pipeline it is measured
    report_interval_ms: float = 20.0


class ReplicaSpec(msgspec.Struct, frozen=True):
    """One replica: exactly one of `llm` and `diffusion`. `listeners` hear its reports."""

    node: NodeId
    model: ModelId
    listeners: tuple[NodeId, ...]
    control: NodeId
    llm: LlmSpec | None = None
    diffusion: DiffusionSpec | None = None
    group: GroupParams | None = None  # runs its steps in lockstep with these
    event_logs: str | None = None
    drain_s: float = 10.0

    @property
    def what(self) -> str:
        """For people."""
        return "replica"

    @property
    def module(self) -> str:
        """What its process runs."""
        return "headway.live.replica_host"

    def order(self, incarnation: int, socket: str, run_start_ns: Ns) -> bytes:
        """The start order on its stdin."""
        return msgspec.msgpack.encode(Start(self, incarnation, socket, run_start_ns))


class Start(msgspec.Struct, frozen=True):
    """The start order on the replica's stdin."""

    spec: ReplicaSpec
    incarnation: int
    socket: str
    run_start_ns: Ns
