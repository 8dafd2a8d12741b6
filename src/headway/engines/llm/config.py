"""Reads a Hugging Face config.json into what our decoder needs, and refuses what it cannot compute, by name."""

from pathlib import Path
from typing import Literal

import msgspec

from headway.core.errors import ConfigError

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


class RopeScaling(msgspec.Struct, frozen=True):
    """Llama 3.1's frequency scaling, or `linear` position interpolation (only `factor` is used)."""

    kind: Literal["llama3", "linear"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0


class ModelConfig(msgspec.Struct, frozen=True):
    """A dense decoder: RMSNorm, rotary GQA, SwiGLU."""

    architecture: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_head: bool
    eos_token_ids: tuple[int, ...]


class _HfRope(msgspec.Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None  # the key of configurations older than transformers 4.43
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


class _HfConfig(msgspec.Struct, frozen=True):
    architectures: list[str]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = None
    rope_scaling: _HfRope | None = None
    rope_parameters: _HfRope | None = None  # transformers 5 puts rope_theta and scaling here
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    eos_token_id: int | list[int] | None = None


class _Generation(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder. Raises ConfigError naming the key that cannot be served."""
    path = folder / "config.json"
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=_HfConfig)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is not the configuration of a dense decoder: {error}") from error
    name = _architecture(path, raw)
    kv_heads = raw.num_key_value_heads or raw.num_attention_heads
    if raw.hidden_act != "silu":
        raise ConfigError(f"{path}: hidden_act {raw.hidden_act!r} is not computed; only silu is")
    if raw.num_attention_heads % kv_heads:
        raise ConfigError(f"{path}: {raw.num_attention_heads} heads cannot be shared by {kv_heads} KV heads")
    _refuse_sliding_window(path, raw, name)
    biased = raw.attention_bias and name in ("llama", "qwen3")
    return ModelConfig(
        architecture=raw.architectures[0],
        hidden=raw.hidden_size,
        feed_forward=raw.intermediate_size,
        layers=raw.num_hidden_layers,
        heads=raw.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=raw.head_dim or raw.hidden_size // raw.num_attention_heads,
        vocab=raw.vocab_size,
        max_position=raw.max_position_embeddings,
        norm_eps=raw.rms_norm_eps,
        rope_theta=_rope_theta(raw),
        rope_scaling=_rope_scaling(path, raw),
        qkv_bias=biased or name == "qwen2",
        output_bias=biased,
        mlp_bias=raw.mlp_bias and name == "llama",
        qk_norm=name == "qwen3",
        tied_head=raw.tie_word_embeddings,
        eos_token_ids=_eos(folder, raw),
    )


def _architecture(path: Path, raw: _HfConfig) -> str:
    for name in raw.architectures:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    served = ", ".join(_ARCHITECTURES)
    raise ConfigError(f"{path}: architecture {raw.architectures} is not served; served are {served}")


def _refuse_sliding_window(path: Path, raw: _HfConfig, name: str) -> None:
    """Qwen configurations carry a window that `use_sliding_window` switches; Mistral's is active where it is set."""
    active = raw.sliding_window is not None and (raw.use_sliding_window or name == "mistral")
    if active and raw.sliding_window is not None and raw.sliding_window < raw.max_position_embeddings:
        raise ConfigError(
            f"{path}: sliding_window {raw.sliding_window} is not computed; serve a model whose sliding_window is null,"
            f" or lower max_position_embeddings ({raw.max_position_embeddings}) to the window"
        )


def _rope_theta(raw: _HfConfig) -> float:
    """10000 is what the architectures mean by an absent key."""
    nested = raw.rope_parameters.rope_theta if raw.rope_parameters is not None else None
    return raw.rope_theta or nested or 10000.0


def _rope_scaling(path: Path, raw: _HfConfig) -> RopeScaling | None:
    rope = raw.rope_scaling or raw.rope_parameters
    kind = None if rope is None else rope.rope_type or rope.type
    if rope is None or kind in (None, "default"):
        return None
    if kind not in ("llama3", "linear"):
        raise ConfigError(f"{path}: rope type {kind!r} is not computed; default, linear and llama3 are")
    if rope.factor is None or (kind == "llama3" and not rope.original_max_position_embeddings):
        raise ConfigError(f"{path}: rope type {kind!r} lacks factor or original_max_position_embeddings")
    return RopeScaling(
        kind="llama3" if kind == "llama3" else "linear",
        factor=rope.factor,
        low_freq_factor=rope.low_freq_factor,
        high_freq_factor=rope.high_freq_factor,
        original_max_position=rope.original_max_position_embeddings,
    )


def _eos(folder: Path, raw: _HfConfig) -> tuple[int, ...]:
    """generation_config.json knows the turn's end of chat models, where config.json often does not."""
    path = folder / "generation_config.json"
    known = None
    if path.is_file():
        known = msgspec.json.decode(path.read_bytes(), type=_Generation).eos_token_id
    ids = raw.eos_token_id if known is None else known
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
