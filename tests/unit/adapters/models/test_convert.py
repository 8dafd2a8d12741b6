import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from headway.adapters.models.convert import convert, unpermute
from headway.adapters.models.errors import ModelError


def test_unpermute_inverts_the_reordering_of_llama_cpp() -> None:
    heads, head_dim, hidden = 3, 8, 5
    weight = np.arange(heads * head_dim * hidden, dtype=np.float32).reshape(heads * head_dim, hidden)
    # llama.cpp, convert_hf_to_gguf: reshape(heads, 2, head_dim / 2, hidden).swapaxes(1, 2)
    permuted = weight.reshape(heads, 2, head_dim // 2, hidden).swapaxes(1, 2).reshape(weight.shape)
    np.testing.assert_array_equal(unpermute(permuted, heads), weight)


def test_writes_every_tensor_under_its_hugging_face_name(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    layer = "model.layers.0."
    assert set(header) - {"__metadata__"} == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        layer + "input_layernorm.weight",
        layer + "post_attention_layernorm.weight",
        *(layer + f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(layer + f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }


def test_writes_a_config_that_states_tied_heads_and_the_rope_base(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["rope_theta"], config["head_dim"]) == (True, 10000.0, 16)
    assert (config["eos_token_id"], config["max_position_embeddings"]) == (2, 128)


def test_writes_a_tokenizer_that_merges_and_keeps_special_tokens_whole(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>!!<|im_end|>")
    assert encoded.tokens == ["<|im_start|>", "!!", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "!!"


def test_refuses_another_architecture_by_name(tiny_gguf: Path, tmp_path: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma"))
    with pytest.raises(ModelError, match="architecture gemma"):
        convert(tiny_gguf, tmp_path)
