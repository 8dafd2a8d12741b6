"""Turns a Llama GGUF file into a Hugging Face folder: bf16 safetensors, config, tokenizer, chat template."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headway.adapters.models.errors import ModelError
from headway.adapters.models.gguf import Floats, GgufFile
from headway.adapters.models.tensors import Planned, write_bfloat16

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_CONTROL_TOKEN = 3


def convert(source: Path, target: Path) -> None:
    """Write the folder's files into the existing directory `target`."""
    file = GgufFile(source)
    if (architecture := file.text("general.architecture")) != "llama":
        raise ModelError(f"{source} has architecture {architecture}; only llama files are converted")
    names = [_hf_name(source, name) for name in file.tensors]
    plan = [Planned(name=hf, shape=entry.shape) for hf, entry in zip(names, file.tensors.values(), strict=True)]
    write_bfloat16(target / "model.safetensors", plan, _values(file))
    _write_json(target / "config.json", _config(file))
    _write_json(target / "generation_config.json", _special_ids(file))
    _write_json(target / "tokenizer.json", tokenizer_json(file))
    template = file.text("tokenizer.chat_template")
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(target / "tokenizer_config.json", _tokenizer_config(file))


def unpermute(weight: Floats, heads: int) -> Floats:
    """Undo llama.cpp's reordering of Q and K rows (pairs of rotary halves interleaved, [heads * head_dim, hidden])."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def tokenizer_json(file: GgufFile) -> dict[str, object]:
    """A `tokenizers` file for the byte-level BPE of the SmolLM family (digits one by one, then GPT-2's pattern)."""
    kind = (file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ModelError(f"tokenizer {kind} is not converted; known is ('gpt2', 'smollm')")
    tokens = file.texts("tokenizer.ggml.tokens")
    kinds = file.integers("tokenizer.ggml.token_type")
    special = [index for index, token_kind in enumerate(kinds) if token_kind == _CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in file.texts("tokenizer.ggml.merges")],
        },
    }


def _hf_name(source: Path, name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    if name == "output.weight":
        return "lm_head.weight"
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    raise ModelError(f"{source} has a tensor {name} that a llama model does not")


def _values(file: GgufFile) -> Iterator[Floats]:
    heads = {
        "attn_q": file.integer("llama.attention.head_count"),
        "attn_k": file.integer("llama.attention.head_count_kv"),
    }
    for name in file.tensors:
        weight = file.tensor(name)
        part = name.split(".")[2] if name.startswith("blk.") else ""
        yield unpermute(weight, heads[part]) if part in heads else np.ascontiguousarray(weight)


def _special_ids(file: GgufFile) -> dict[str, object]:
    return {
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.integer("tokenizer.ggml.padding_token_id"),
    }


def _config(file: GgufFile) -> dict[str, object]:
    heads = file.integer("llama.attention.head_count")
    hidden = file.integer("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.integer("llama.feed_forward_length"),
        "num_hidden_layers": file.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.integer("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "vocab_size": file.integer("llama.vocab_size"),
        "max_position_embeddings": file.integer("llama.context_length"),
        "rms_norm_eps": file.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.number("llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **_special_ids(file),
    }


def _tokenizer_config(file: GgufFile) -> dict[str, object]:
    tokens = file.texts("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[file.integer("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[file.integer("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[file.integer("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[file.integer("tokenizer.ggml.unknown_token_id")],
        "model_max_length": file.integer("llama.context_length"),
        "chat_template": file.text("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
