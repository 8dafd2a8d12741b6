"""Pools of a simulated system, as a scenario file names them: what serves, on which devices, seen and timed how."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.request import DenoiseShape
from headway.cost.coldstart import ColdStartParams
from headway.cost.diffusion_belief import DenoiseCostParams
from headway.cost.diffusion_devices import Execution
from headway.cost.llm import StepCostParams
from headway.sched.config import WorkerConfig
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.llm.params import LlmParams
from headway.sim.linear import LinearParams
from headway.sim.scrape import ScrapeParams

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The devices of one replica: `tp * pp * cp * dp` of them; experts lie over `ep` of these."""

    device: str = "H100-SXM"  # a name of the device catalogue, or of a user file
    link: str = ""  # between the devices of a replica; unset: what the device comes with
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    dp: Count = 1  # attention data parallelism inside the replica
    network: str = ""  # between the hosts of a replica; unset: what the device comes with
    pipeline: Literal["filled", "drained"] = "filled"  # drained: no stage begins the next step before all end this one
    overlap: Literal["none", "two_batch"] = "none"  # two_batch: one half computes while the other communicates
    efficiency: str = "vllm"  # how much of the peaks an engine reaches: vllm, sglang, trtllm, headway

    @property
    def devices(self) -> int:
        """Devices that a replica holds."""
        return self.tp * self.pp * self.cp * self.dp


class EngineSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine of one replica holds."""

    block_size: Count = 16
    kv_blocks: Annotated[int, msgspec.Meta(ge=1)] | None = None  # unset: what fits beside the weights
    memory_share: Share = 0.9  # of the device memory that the engine may take
    max_model_len: Annotated[int, msgspec.Meta(ge=1)] | None = None  # unset: the model's
    host_slots: Annotated[int, msgspec.Meta(ge=0)] = 0


class TruthParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How what really takes time differs from the model that beliefs start from. Policies never see it."""

    scale: Positive = 1.08  # every step takes so much longer than the catalogue says
    jitter: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.03  # uniform, of single steps
    spread: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02  # uniform, of whole replicas


class PoolShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pictures or videos of one size."""

    height: Annotated[int, msgspec.Meta(ge=1)]
    width: Annotated[int, msgspec.Meta(ge=1)]
    frames: Annotated[int, msgspec.Meta(ge=1)] = 1

    @property
    def shape(self) -> DenoiseShape:
        """As a plan names it."""
        return DenoiseShape(self.height, self.width, self.frames)


class PoolParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replicas that are alike."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] = "pool"
    kind: Literal["llm", "diffusion"] = "llm"
    role: Literal["mixed", "prefill", "decode"] = "mixed"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1  # to begin with
    replicas_max: Annotated[int, msgspec.Meta(ge=1)] | None = None  # that an orchestrator may start; unset: no more
    start: ColdStartParams = ColdStartParams()  # what a replica takes before it serves
    start_s: Annotated[float, msgspec.Meta(ge=0)] | None = None  # in place of the phases of `start`
    model: str = "llama-3.1-8b"  # a name of the model catalogue, or of a user file
    dtype: str = "bfloat16"
    kv_dtype: str = ""  # of the KV cache; unset: 16 bits, or as wide as float32 weights
    hardware: Hardware = Hardware()
    cost: str = "roofline"  # measured: corrected by published rows; published:NAME, linear, or a file of `calibrate`
    linear: LinearParams = LinearParams()  # of cost = "linear"
    engine: EngineSize = EngineSize()
    scheduler: LlmParams = LlmParams()
    worker: WorkerConfig = WorkerConfig()
    truth: TruthParams = TruthParams()
    belief: StepCostParams | None = None  # where replicas' estimates begin; unset: the cost model, unperturbed
    seen: Literal["report", "scrape"] = "report"  # scrape: the router sees what a metrics page tells, as of an upstream
    scrape: ScrapeParams = ScrapeParams()  # of seen = "scrape"
    diffusion: DiffusionParams = DiffusionParams()  # the scheduler of kind = "diffusion"
    execution: Execution = Execution()  # how its denoisers run
    denoise: DenoiseCostParams = DenoiseCostParams()  # what it believes that they take
    shapes: tuple[PoolShape, ...] = ()  # of all pools of its model: those of another one are prepared before it moves
    warm: tuple[PoolShape, ...] | None = None  # that have run when its denoisers begin; unset: every shape has

    @property
    def places(self) -> int:
        """Replicas that there can be."""
        return max(self.replicas, self.replicas_max or 0)

    def __post_init__(self) -> None:
        for key in _ONLY["llm" if self.kind == "diffusion" else "diffusion"]:
            if getattr(self, key) != _DEFAULTS[key]:
                raise ConfigError(f"pool {self.name}: {key} means nothing to a pool of kind {self.kind!r}; remove it")
        if self.replicas_max is not None and self.replicas_max < self.replicas:
            raise ConfigError(
                f"pool {self.name}: replicas_max = {self.replicas_max} is below replicas = {self.replicas}; "
                "raise it, or begin with fewer"
            )
        if self.scheduler.async_depth != self.worker.credits:
            raise ConfigError(
                f"pool {self.name}: scheduler.async_depth = {self.scheduler.async_depth} and worker.credits = "
                f"{self.worker.credits} are the same steps in flight; give both the same value"
            )

    @property
    def devices(self) -> int:
        """Devices that a replica holds."""
        return self.execution.devices if self.kind == "diffusion" else self.hardware.devices


_ONLY: Final[Mapping[str, Sequence[str]]] = {
    "llm": ("role", "dtype", "kv_dtype", "cost", "linear", "scheduler", "belief", "seen", "scrape"),
    "diffusion": ("diffusion", "execution", "denoise", "shapes", "warm"),
}
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(PoolParams)}
