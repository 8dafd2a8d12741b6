import struct
from pathlib import Path

import numpy as np
import pytest

from headway.adapters.models.errors import ModelError
from headway.adapters.models.gguf import GgufFile


def test_dequantises_q4_1_as_scale_times_nibble_plus_minimum(tiny_gguf: Path) -> None:
    file = GgufFile(tiny_gguf)
    entry = file.tensors["blk.0.attn_k.weight"]
    raw = tiny_gguf.read_bytes()[file._base + entry.offset :][:20]
    scale, low = np.frombuffer(raw[:4], np.float16).astype(np.float32)
    nibbles = [byte & 15 for byte in raw[4:]] + [byte >> 4 for byte in raw[4:]]
    expected = np.array([scale * np.float32(nibble) + low for nibble in nibbles], np.float32)
    np.testing.assert_array_equal(file.tensor(entry.name)[0, :32], expected)


def test_dequantises_q8_0_as_scale_times_signed_byte(tiny_gguf: Path) -> None:
    file = GgufFile(tiny_gguf)
    raw = tiny_gguf.read_bytes()[file._base + file.tensors["token_embd.weight"].offset :][:34]
    scale = np.frombuffer(raw[:2], np.float16).astype(np.float32)[0]
    expected = np.array([scale * np.float32(value) for value in struct.unpack("<32b", raw[2:])], np.float32)
    np.testing.assert_array_equal(file.tensor("token_embd.weight")[0, :32], expected)


def test_agrees_with_the_gguf_package_on_every_tensor(tiny_gguf: Path) -> None:
    reference = pytest.importorskip("gguf")
    file = GgufFile(tiny_gguf)
    for tensor in reference.GGUFReader(str(tiny_gguf)).tensors:
        expected = reference.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.tensor(tensor.name), expected)


def test_reads_a_stored_float32_as_its_shortest_decimal(tiny_gguf: Path) -> None:
    assert GgufFile(tiny_gguf).number("llama.attention.layer_norm_rms_epsilon") == 1e-5


def test_names_the_tensor_where_a_truncated_file_ends(tiny_gguf: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:-4096])
    file = GgufFile(tiny_gguf)
    with pytest.raises(ModelError, match=r"ends inside tensor blk\.0\.ffn_down\.weight"):
        file.tensor("blk.0.ffn_down.weight")


def test_refuses_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else entirely")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        GgufFile(tmp_path / "other")
