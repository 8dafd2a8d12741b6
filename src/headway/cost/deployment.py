"""One replica of a model on its devices: the layout over them, what fits beside the weights, and what cannot work."""

from typing import Annotated

import msgspec

from headway.core.errors import ConfigError
from headway.cost.devices import BYTES_OF, Device, check_dtype
from headway.cost.efficiency import EFFICIENCIES, Efficiency
from headway.cost.links import Link, find_link
from headway.cost.models import WIDE, LlmModel

Count = Annotated[int, msgspec.Meta(ge=1)]

ACTIVATION_TOKENS = 8192  # of the largest step whose activations are kept free
RUNTIME_BYTES = 1.0e9  # context, graphs and workspaces of one device; assumed


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica lies over `tp * pp * cp * dp` devices; experts lie over `ep` of the `tp * dp` of a stage."""

    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    dp: Count = 1
    microbatches: Annotated[int, msgspec.Meta(ge=0)] = 0  # of one step over the stages; 0: as many as stages
    is_filled: bool = False  # the next step's microbatches follow at once, so that no stage drains between steps

    @property
    def devices(self) -> int:
        """Devices of the replica."""
        return self.tp * self.pp * self.cp * self.dp


class TwoBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two-batch overlap: one half computes while the other communicates, and both slow each other down.

    Contention is calibrated on one published value, SGLang's prefill gain of 27 to 35 % (its large-EP report, 2025-05).
    """

    slow_compute: Annotated[float, msgspec.Meta(ge=0)] = 0.45  # c of compute beside communication
    slow_network: Annotated[float, msgspec.Meta(ge=0)] = 0.45  # c of communication beside compute
    sync_ns: Annotated[float, msgspec.Meta(ge=0)] = 5_000.0  # to join both, twice per step


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A model, the devices that serve it, and how well. `link` and `network` unset: what the device comes with."""

    model: LlmModel
    device: Device
    layout: Layout = Layout()
    dtype: str = "bfloat16"
    kv_dtype: str = ""  # unset: 16 bits, or as wide as float32 weights
    efficiency: Efficiency = EFFICIENCIES["vllm"]
    link: Link | None = None
    network: Link | None = None
    two_batch: TwoBatch | None = None

    @property
    def link_used(self) -> Link:
        """The link inside a host."""
        return self.link or find_link(self.device.link)

    @property
    def network_used(self) -> Link:
        """The link between hosts."""
        return self.network or find_link(self.device.network)

    @property
    def kv_type(self) -> str:
        """The number type of the KV cache."""
        return check_dtype(self.kv_dtype) if self.kv_dtype else self.dtype if self.dtype in WIDE else "bfloat16"


def check(deployment: Deployment) -> Deployment:
    """Return it if its layout can work. Raises ConfigError that names the keys."""
    model, layout = deployment.model, deployment.layout
    check_dtype(deployment.dtype)
    if model.heads % layout.tp:
        raise ConfigError(f"tp = {layout.tp} does not divide the {model.heads} heads of {model.name}; use a divisor")
    if layout.pp > model.layers:
        raise ConfigError(f"pp = {layout.pp} exceeds the {model.layers} layers of {model.name}")
    if model.experts is None and (layout.ep > 1 or layout.dp > 1):
        raise ConfigError(
            f"ep = {layout.ep}, dp = {layout.dp}: {model.name} is dense, experts and attention data parallelism"
            " need a model with experts; use tp, pp, or more replicas"
        )
    if (layout.tp * layout.dp) % layout.ep:
        raise ConfigError(f"ep = {layout.ep} does not divide tp * dp = {layout.tp * layout.dp}; use a divisor")
    if model.experts is not None and layout.ep > model.experts.experts:
        raise ConfigError(f"ep = {layout.ep} exceeds the {model.experts.experts} experts of {model.name}")
    return deployment


def weight_bytes_of_device(deployment: Deployment) -> float:
    """Weights on the fullest device: attention is copied over cp and dp, experts are split over tp * dp."""
    model, layout, dtype = deployment.model, deployment.layout, deployment.dtype
    stage = -(-model.layers // layout.pp) / model.layers
    wide = BYTES_OF[dtype] if dtype in WIDE else 2.0
    experts = 0.0
    if (moe := model.experts) is not None:
        total = moe.layers * moe.experts * model.expert_parameters * BYTES_OF[model.expert_dtype(dtype)]
        experts = total / (layout.tp * layout.dp)
    embeddings = model.head_parameters * wide * (1 if model.tied_head or layout.pp > 1 else 2)
    return (model.linear_parameters * BYTES_OF[dtype] * stage + embeddings) / layout.tp + experts * stage


def kv_tokens_fit(deployment: Deployment, memory_share: float = 0.9, runtime_bytes: float | None = None) -> int:
    """Tokens of KV that fit beside the weights in `memory_share` of every device, over the whole replica.

    `runtime_bytes` of a device are kept free for activations and the runtime; unset: an estimate. 0: nothing fits.
    Raises ConfigError.
    """
    check(deployment)
    if not 0 < memory_share <= 1:
        raise ConfigError(f"memory_share = {memory_share} is not in (0, 1]; 0.9 leaves room for the driver")
    model, layout = deployment.model, deployment.layout
    if runtime_bytes is None:
        widest = max(model.feed_forward // layout.tp, model.hidden)
        runtime_bytes = RUNTIME_BYTES + ACTIVATION_TOKENS * 2 * (2 * model.hidden + 2 * widest)
    room = deployment.device.memory_bytes * memory_share - weight_bytes_of_device(deployment) - runtime_bytes
    stage = -(-model.layers // layout.pp) / model.layers
    per_token = model.kv_bytes_per_token_of_rank(layout.tp, deployment.kv_type) * stage
    return max(0, int(room / per_token) * layout.cp * layout.dp)
