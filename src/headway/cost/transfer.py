"""What moving state takes: KV, latents, embeddings, weights. Queueing for a link is its owner's business.

Also when a copy beats computing again, and how a migration in stages goes.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S
from headway.cost.links import Link
from headway.cost.models import LlmModel

Duration = Annotated[float, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0)]


class Path(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """t = fixed + bytes / rate, alone on the way."""

    bytes_per_s: Rate
    fixed_ns: Duration = 0.0  # handshake, registration, first byte

    def ns(self, size: float) -> float:
        """Time for so many bytes; nothing to move takes nothing."""
        return self.fixed_ns + size / self.bytes_per_s * NS_PER_S if size > 0 else 0.0


def path_over(link: Link, ports: int = 1, fixed_ns: float = 0.0) -> Path:
    """Return the path over `ports` links at once, as when every rank sends its share through its own."""
    return Path(link.bytes_per_s * ports, link.latency_ns + fixed_ns)


def kv_path(model: LlmModel, link: Link, tp: int, fixed_ns: float = 0.0) -> Path:
    """Return the path of a sequence's KV between replicas: ranks send what only they hold."""
    return path_over(link, 1 if model.latent is not None else min(tp, model.kv_heads), fixed_ns)


def kv_bytes(model: LlmModel, tokens: int, dtype: str = "bfloat16") -> float:
    """KV of one sequence, all layers."""
    return model.kv_bytes_per_token(dtype) * tokens


def embedding_bytes(tokens: int, width: int, number_bytes: float = 2.0) -> float:
    """Output of a text encoder."""
    return tokens * width * number_bytes


def latent_bytes(height: int, width: int, frames: int = 1, channels: int = 16, scale: int = 8) -> float:
    """A latent at a denoise boundary in 16 bits; `frames` are latent frames."""
    return height // scale * (width // scale) * frames * channels * 2.0


def transfer_gain_ns(
    path: Path, size: float, local_prefill_ns: float, best_prefill_ns: float, queue_ns: float = 0.0
) -> float:
    """What fetching `size` bytes of KV saves against computing them here; negative: compute (Mooncake, section 4).

    Transfer iff size/B + q_B < t_pf(n, local) - t_pf(n, best).
    """
    return local_prefill_ns - best_prefill_ns - path.ns(size) - queue_ns


def crossover_tokens(
    path: Path, bytes_per_token: float, prefill_ns: Callable[[int], float], most: int = 1 << 20
) -> int | None:
    """Return the fewest tokens from which fetching beats computing; None if it does not up to `most`.

    Computing must grow no slower than a line, as prefill does. O(log most).
    """
    if transfer_gain_ns(path, bytes_per_token * most, prefill_ns(most), 0.0) <= 0:
        return None
    low, high = 0, most
    while low + 1 < high:
        middle = (low + high) // 2
        wins = transfer_gain_ns(path, bytes_per_token * middle, prefill_ns(middle), 0.0) > 0
        low, high = (low, middle) if wins else (middle, high)
    return high


def bandwidth_min(model: LlmModel, tokens: int, flops: float, number_bytes: float = 2.0) -> float:
    """Bytes/s from which fetching a prefix of `tokens` beats computing it at `flops` (Mooncake, FAST'25, eq. 2).

    B/G > 2ds / (gqa (a p d + b d^2)) with a = 4, b = 22, per layer; for models with grouped heads.
    """
    d, group = model.hidden, model.heads / model.kv_heads
    return flops * 2 * d * number_bytes / (group * (4 * tokens * d + 22 * d * d))


class MigrationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy while it decodes, in stages, until little is left (Llumnix, OSDI'24, section 4.2)."""

    stages_max: Annotated[int, msgspec.Meta(ge=1)] = 3  # copied while decoding
    last_blocks: Annotated[int, msgspec.Meta(ge=0)] = 16  # so many or fewer are copied with the sequence frozen
    block_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    control_ns: Duration = 10_000_000.0  # freeze, hand over, resume


class MigrationTimes(msgspec.Struct, frozen=True):
    """How a migration goes."""

    stages: int  # while decoding
    downtime_ns: float  # no token
    total_ns: float


def migration_times(
    bytes_per_token: float, tokens: int, tokens_per_s: float, path: Path, params: MigrationParams
) -> MigrationTimes:
    """Stages copy V_0 = kappa n, V_k+1 = what was generated meanwhile; the rest is the downtime.

    Raises ConfigError when the sequence grows as fast as the path copies (kappa r / B >= 1): it would never end.
    """
    growth = bytes_per_token * tokens_per_s / path.bytes_per_s
    if growth >= 1:
        raise ConfigError(
            f"a sequence grows {growth:.2f} times as fast as its path of {path.bytes_per_s:.3g} B/s copies it;"
            " migrate over a faster link"
        )
    left, total, stages = float(tokens), 0.0, 0
    while stages < params.stages_max and (stages == 0 or left > params.last_blocks * params.block_tokens):
        took = path.ns(_whole_blocks(left, params) * bytes_per_token)
        left, total, stages = tokens_per_s * took / NS_PER_S, total + took, stages + 1
    downtime = path.ns(_whole_blocks(left, params) * bytes_per_token) + params.control_ns
    return MigrationTimes(stages, downtime, total + downtime)


def _whole_blocks(tokens: float, params: MigrationParams) -> int:
    """Tokens that the blocks of so many hold: copies move blocks."""
    return -int(-tokens // params.block_tokens) * params.block_tokens
