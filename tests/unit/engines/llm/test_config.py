import json
from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.engines.llm.config import ModelConfig, RopeScaling, read_config

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "an_unknown_key": 1,
}


def read(folder: Path, **changes: object) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return read_config(folder)


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.kv_heads, config.head_dim, config.rope_scaling) == (4, 16, None)


@pytest.mark.parametrize(
    ("name", "qkv_bias", "qk_norm"),
    [
        ("LlamaForCausalLM", False, False),
        ("MistralForCausalLM", False, False),
        ("Qwen2ForCausalLM", True, False),
        ("Qwen3ForCausalLM", False, True),
    ],
)
def test_each_architecture_has_its_biases_and_norms(tmp_path: Path, name: str, qkv_bias: bool, qk_norm: bool) -> None:
    config = read(tmp_path, architectures=[name])
    assert (config.qkv_bias, config.output_bias, config.qk_norm) == (qkv_bias, False, qk_norm)


def test_refuses_an_architecture_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"architecture \['MambaForCausalLM'\] is not served"):
        read(tmp_path, architectures=["MambaForCausalLM"])


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_reads_the_scaling_of_llama_3_from_either_key(tmp_path: Path, key: str) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )
    assert read(tmp_path, **{key: scaling}).rope_scaling == expected


def test_reads_the_rope_base_of_transformers_5(tmp_path: Path) -> None:
    assert read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope_theta == 5e5


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_refuses_a_rope_type_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"rope type '{kind}' is not computed"):
        read(tmp_path, rope_scaling={"type": kind, "factor": 2.0})


def test_refuses_an_active_sliding_window_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sliding_window 1024 is not computed"):
        read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=1024)
    with pytest.raises(ConfigError, match="sliding_window 1024 is not computed"):
        read(tmp_path, architectures=["Qwen2ForCausalLM"], sliding_window=1024, use_sliding_window=True)


@pytest.mark.parametrize(
    "keys",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 1024, "use_sliding_window": False},
    ],
)
def test_accepts_a_window_that_never_closes(tmp_path: Path, keys: dict[str, object]) -> None:
    assert read(tmp_path, **keys).max_position == 4096


def test_takes_the_ends_of_the_generation_config_first(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=5).eos_token_ids == (5,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert read(tmp_path, eos_token_id=5).eos_token_ids == (7, 8)


def test_names_a_missing_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ConfigError, match="hidden_size"):
        read_config(tmp_path)


def test_refuses_another_activation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hidden_act 'gelu'"):
        read(tmp_path, hidden_act="gelu")
