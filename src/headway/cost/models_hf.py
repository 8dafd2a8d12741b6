"""Reads a model from the mapping of a Hugging Face config.json, and refuses by name what it does not understand."""

from collections.abc import Mapping
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.cost.models import Experts, Latent, LlmModel

_DENSE: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "OPTForCausalLM",
)
_MOE: Final = (
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "GptOssForCausalLM",
    "MiniMaxM2ForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
)
_QK_NORM: Final = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
_QKV_BIAS: Final = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM")


class _Quantised(msgspec.Struct, frozen=True):
    quant_method: str = ""


class _Hf(msgspec.Struct, frozen=True):
    """The keys that decide cost; all others are passed over."""

    architectures: list[str]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    ffn_dim: int | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    layer_types: list[str] | None = None
    # experts, in the words of each family
    num_local_experts: int | None = None
    num_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    shared_expert_intermediate_size: int = 0
    n_shared_experts: int | None = None
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    # latent attention
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    quantization_config: _Quantised | None = None


def model_of(config: Mapping[str, object], *, name: str = "", source: str = "", date: str = "") -> LlmModel:
    """Return the model that a config.json describes. Raises ConfigError naming the key that is missing or unknown."""
    label = name or str(config.get("_name_or_path") or config.get("name") or "model")
    try:
        hf = msgspec.convert(dict(config), _Hf)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: its config.json cannot be read as a decoder's: {error}") from error
    architecture = next((known for known in hf.architectures if known in _DENSE or known in _MOE), None)
    if architecture is None:
        raise ConfigError(
            f"{label}: architecture {', '.join(hf.architectures) or '(none)'} is not understood;"
            f" understood are {', '.join((*_DENSE, *_MOE))}"
        )
    return _Reader(label, architecture, hf).model(source, date)


class _Reader:
    def __init__(self, label: str, architecture: str, hf: _Hf) -> None:
        self._label, self._architecture, self._hf = label, architecture, hf

    def model(self, source: str, date: str) -> LlmModel:
        hf, opt = self._hf, self._architecture == "OPTForCausalLM"
        heads = hf.num_attention_heads
        kv_heads = hf.num_key_value_heads or heads
        if heads % kv_heads:
            raise ConfigError(f"{self._label}: {heads} heads cannot share num_key_value_heads = {kv_heads}")
        if hf.head_dim is None and hf.hidden_size % heads:
            raise ConfigError(
                f"{self._label}: hidden_size {hf.hidden_size} is no multiple of {heads} heads; give head_dim"
            )
        experts = self._experts() if self._architecture in _MOE else None
        window, windowed = self._window()
        dense = experts is None or experts.layers < hf.num_hidden_layers
        tied = opt if hf.tie_word_embeddings is None else hf.tie_word_embeddings
        return LlmModel(
            name=self._label,
            layers=hf.num_hidden_layers,
            hidden=hf.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=hf.head_dim or hf.hidden_size // heads,
            vocab=hf.vocab_size,
            feed_forward=self._need("ffn_dim" if opt else "intermediate_size") if dense else 0,
            context_max=hf.max_position_embeddings,
            gated=not opt,
            tied_head=tied,
            small_parameters=self._small(hf.head_dim or hf.hidden_size // heads, kv_heads),
            latent=self._latent() if hf.kv_lora_rank else None,
            experts=experts,
            window=window,
            windowed_layers=windowed,
            source=source,
            date=date,
        )

    def _need(self, key: str) -> int:
        value = getattr(self._hf, key)
        if not isinstance(value, int):
            raise ConfigError(f"{self._label}: {self._architecture} needs {key} in its config.json, found {value!r}")
        return value

    def _experts(self) -> Experts:
        hf = self._hf
        deepseek = self._architecture.startswith("Deepseek")
        key = "n_routed_experts" if deepseek else "num_experts" if hf.num_experts is not None else "num_local_experts"
        width = "moe_intermediate_size" if hf.moe_intermediate_size is not None else "intermediate_size"
        count, per_token, feed_forward = self._need(key), self._need("num_experts_per_tok"), self._need(width)
        if not 0 < per_token <= count:
            raise ConfigError(f"{self._label}: num_experts_per_tok {per_token} is not in 1..{key} = {count}")
        dense = [*range(hf.first_k_dense_replace)] if deepseek else hf.mlp_only_layers or []
        step = hf.moe_layer_freq if deepseek else hf.decoder_sparse_step
        layers = sum(
            1
            for layer in range(hf.num_hidden_layers)
            if layer not in dense and (layer if deepseek else layer + 1) % step == 0
        )
        quantised = hf.quantization_config.quant_method if hf.quantization_config is not None else ""
        return Experts(
            experts=count,
            per_token=per_token,
            feed_forward=feed_forward,
            layers=layers,
            shared_feed_forward=(hf.n_shared_experts or 0) * feed_forward or hf.shared_expert_intermediate_size,
            biased=self._architecture == "GptOssForCausalLM",
            dtype="mxfp4" if quantised == "mxfp4" else "",
        )

    def _latent(self) -> Latent:
        return Latent(
            kv_rank=self._need("kv_lora_rank"),
            rope_dim=self._need("qk_rope_head_dim"),
            nope_dim=self._need("qk_nope_head_dim"),
            value_dim=self._need("v_head_dim"),
            q_rank=self._hf.q_lora_rank or 0,
        )

    def _window(self) -> tuple[int, int]:
        """Return the window and how many layers have it. Qwen's key is off unless `use_sliding_window` says so."""
        hf = self._hf
        if not hf.sliding_window or hf.use_sliding_window is False or hf.sliding_window >= hf.max_position_embeddings:
            return 0, 0
        if hf.layer_types is not None:
            return hf.sliding_window, sum(kind == "sliding_attention" for kind in hf.layer_types)
        if self._architecture == "GptOssForCausalLM":
            return hf.sliding_window, (hf.num_hidden_layers + 1) // 2  # every second layer, from the first
        return hf.sliding_window, hf.num_hidden_layers

    def _small(self, head_dim: int, kv_heads: int) -> int:
        """Norms, biases and learned positions."""
        hf, layers, hidden = self._hf, self._hf.num_hidden_layers, self._hf.hidden_size
        heads = hf.num_attention_heads
        qkv = (heads + 2 * kv_heads) * head_dim
        if self._architecture == "OPTForCausalLM":
            positions = (hf.max_position_embeddings + 2) * hidden
            return positions + layers * (4 * hidden + 4 * hidden + self._need("ffn_dim") + hidden) + 2 * hidden
        total = (2 * layers + 1) * hidden
        if self._architecture in _QK_NORM:
            total += 2 * layers * head_dim
        if self._architecture in _QKV_BIAS or hf.attention_bias:
            total += layers * qkv
        if self._architecture == "GptOssForCausalLM":  # biases of the output product and the router, one sink per head
            total += layers * (hidden + (hf.num_local_experts or 0) + heads)
        if hf.kv_lora_rank:
            total += layers * (hf.kv_lora_rank + (hf.q_lora_rank or 0))
        return total
