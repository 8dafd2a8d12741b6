"""A tiny Llama GGUF file, written byte by byte: 1 layer, hidden 64, 4 query heads, 2 KV heads, 40 tokens."""

import struct
from pathlib import Path

import numpy as np
import pytest

HIDDEN, FEED, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 40
F32, Q4_1, Q8_0 = 0, 3, 8


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(str(item)) for item in value)
        case list():
            return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    raise TypeError(value)


def _tensors(rng: np.random.Generator) -> list[tuple[str, tuple[int, ...], int, bytes]]:
    def q4_1(rows: int, columns: int) -> bytes:
        blocks = rows * columns // 32
        scales = rng.uniform(0.01, 0.1, (blocks, 2)).astype(np.float16).view(np.uint8)
        return np.concatenate([scales, rng.integers(0, 256, (blocks, 16), dtype=np.uint8)], axis=1).tobytes()

    def q8_0(rows: int, columns: int) -> bytes:
        blocks = rows * columns // 32
        scales = rng.uniform(0.01, 0.1, (blocks, 1)).astype(np.float16).view(np.uint8)
        return np.concatenate([scales, rng.integers(0, 256, (blocks, 32), dtype=np.uint8)], axis=1).tobytes()

    def f32(size: int) -> bytes:
        return rng.standard_normal(size).astype(np.float32).tobytes()

    key_rows = HIDDEN // HEADS * KV_HEADS
    matrices = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (key_rows, HIDDEN),
        "attn_v": (key_rows, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FEED, HIDDEN),
        "ffn_up": (FEED, HIDDEN),
        "ffn_down": (HIDDEN, FEED),
    }
    return [
        ("token_embd.weight", (VOCAB, HIDDEN), Q8_0, q8_0(VOCAB, HIDDEN)),
        ("output_norm.weight", (HIDDEN,), F32, f32(HIDDEN)),
        ("blk.0.attn_norm.weight", (HIDDEN,), F32, f32(HIDDEN)),
        ("blk.0.ffn_norm.weight", (HIDDEN,), F32, f32(HIDDEN)),
        *((f"blk.0.{name}.weight", shape, Q4_1, q4_1(*shape)) for name, shape in matrices.items()),
    ]


def _metadata() -> dict[str, object]:
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *(chr(ord("!") + index) for index in range(VOCAB - 4)),
        "!!",
    ]
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (VOCAB - 3),
        "tokenizer.ggml.merges": ["! !"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    metadata, tensors = _metadata(), _tensors(np.random.default_rng(7))
    out = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    offset, body = 0, b""
    for name, shape, kind, raw in tensors:
        out += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out += struct.pack("<IQ", kind, offset)
        body += raw + b"\0" * (-len(raw) % 32)
        offset = len(body)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(out + b"\0" * (-len(out) % 32) + body)
    return path
