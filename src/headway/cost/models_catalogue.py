"""Catalogue of language models: the keys of their config.json that decide cost, with the hub's id and its date."""

from collections.abc import Mapping
from typing import Final

from headway.cost.lookup import entry_named
from headway.cost.models import LlmModel
from headway.cost.models_hf import model_of

_Keys = tuple[int, int, int, int, int, int, int]


def _config(architecture: str, keys: _Keys, **more: object) -> dict[str, object]:
    """`keys`: layers, hidden, heads, KV heads, feed-forward, vocabulary, positions."""
    layers, hidden, heads, kv_heads, feed_forward, vocab, positions = keys
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": feed_forward,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        **more,
    }


def _opt(layers: int, hidden: int, heads: int) -> dict[str, object]:
    keys = (layers, hidden, heads, heads, 4 * hidden, 50272, 2048)
    return _config("OPT", keys, ffn_dim=4 * hidden, tie_word_embeddings=True)


def _qwen3_moe(keys: _Keys, width: int) -> dict[str, object]:
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": width}
    return _config("Qwen3Moe", keys, head_dim=128, **experts)


def _gpt_oss(layers: int, experts: int) -> dict[str, object]:
    return _config(
        "GptOss",
        (layers, 2880, 64, 8, 2880, 201088, 131072),
        head_dim=64,
        attention_bias=True,
        sliding_window=128,
        num_local_experts=experts,
        num_experts_per_tok=4,
        quantization_config={"quant_method": "mxfp4"},
    )


def _latent(architecture: str, keys: _Keys, **more: object) -> dict[str, object]:
    widths = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return _config(architecture, keys, **widths, **more)


_V3: Final = {
    "q_lora_rank": 1536,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
}

_CONFIGS: Final[Mapping[str, tuple[str, str, dict[str, object]]]] = {
    "smollm2-135m": (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "2024-11",
        _config("Llama", (30, 576, 9, 3, 1536, 49152, 8192), tie_word_embeddings=True),
    ),
    "llama-7b": ("huggyllama/llama-7b", "2023-04", _config("Llama", (32, 4096, 32, 32, 11008, 32000, 2048))),
    "llama-2-7b": ("meta-llama/Llama-2-7b-hf", "2023-07", _config("Llama", (32, 4096, 32, 32, 11008, 32000, 4096))),
    "llama-2-70b": ("meta-llama/Llama-2-70b-hf", "2023-07", _config("Llama", (80, 8192, 64, 8, 28672, 32000, 4096))),
    "llama-3.1-8b": (
        "meta-llama/Llama-3.1-8B-Instruct",
        "2024-07",
        _config("Llama", (32, 4096, 32, 8, 14336, 128256, 131072)),
    ),
    "llama-3.1-70b": (
        "meta-llama/Llama-3.1-70B-Instruct",
        "2024-07",
        _config("Llama", (80, 8192, 64, 8, 28672, 128256, 131072)),
    ),
    "llama-3.1-405b": (
        "meta-llama/Llama-3.1-405B-Instruct",
        "2024-07",
        _config("Llama", (126, 16384, 128, 8, 53248, 128256, 131072)),
    ),
    "mistral-7b": (
        "mistralai/Mistral-7B-Instruct-v0.3",
        "2024-05",
        _config("Mistral", (32, 4096, 32, 8, 14336, 32768, 32768)),
    ),
    "qwen3-8b": ("Qwen/Qwen3-8B", "2025-04", _config("Qwen3", (36, 4096, 32, 8, 12288, 151936, 40960), head_dim=128)),
    "qwen3-32b": ("Qwen/Qwen3-32B", "2025-04", _config("Qwen3", (64, 5120, 64, 8, 25600, 151936, 40960), head_dim=128)),
    "opt-13b": ("facebook/opt-13b", "2022-05", _opt(40, 5120, 40)),
    "opt-66b": ("facebook/opt-66b", "2022-06", _opt(64, 9216, 72)),
    "mixtral-8x7b": (
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "2023-12",
        _config("Mixtral", (32, 4096, 32, 8, 14336, 32000, 32768), num_local_experts=8, num_experts_per_tok=2),
    ),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", "2025-04", _qwen3_moe((48, 2048, 32, 4, 6144, 151936, 40960), 768)),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B", "2025-04", _qwen3_moe((94, 4096, 64, 4, 12288, 151936, 40960), 1536)),
    "gpt-oss-20b": ("openai/gpt-oss-20b", "2025-08", _gpt_oss(24, 32)),
    "gpt-oss-120b": ("openai/gpt-oss-120b", "2025-08", _gpt_oss(36, 128)),
    "minimax-m2": (
        "MiniMaxAI/MiniMax-M2",
        "2025-10",
        _config(
            "MiniMaxM2",
            (62, 3072, 48, 8, 1536, 200064, 196608),
            head_dim=128,
            num_local_experts=256,
            num_experts_per_tok=8,
        ),
    ),
    "deepseek-v2-lite": (
        "deepseek-ai/DeepSeek-V2-Lite",
        "2024-05",
        _latent(
            "DeepseekV2",
            (27, 2048, 16, 16, 10944, 102400, 163840),
            n_routed_experts=64,
            num_experts_per_tok=6,
            moe_intermediate_size=1408,
            n_shared_experts=2,
            first_k_dense_replace=1,
        ),
    ),
    "deepseek-v3": (
        "deepseek-ai/DeepSeek-V3",
        "2024-12",
        _latent(
            "DeepseekV3",
            (61, 7168, 128, 128, 18432, 129280, 163840),
            n_routed_experts=256,
            first_k_dense_replace=3,
            **_V3,
        ),
    ),
    "kimi-k2": (
        "moonshotai/Kimi-K2-Instruct",
        "2025-07",
        _latent(
            "DeepseekV3",
            (61, 7168, 64, 64, 18432, 163840, 131072),
            n_routed_experts=384,
            first_k_dense_replace=1,
            **_V3,
        ),
    ),
}

MODELS: Final[Mapping[str, LlmModel]] = {
    name: model_of(config, name=name, source=source, date=date) for name, (source, date, config) in _CONFIGS.items()
}
_BY_SOURCE: Final[Mapping[str, LlmModel]] = {model.source: model for model in MODELS.values()}


def find_model(name: str, extra: Mapping[str, LlmModel] | None = None) -> LlmModel:
    """Return a model by its name here or on the hub; `extra` are those of user files. Raises ConfigError."""
    if name in _BY_SOURCE and name not in (extra or {}):
        return _BY_SOURCE[name]
    return entry_named("model", name, MODELS, extra or {})
