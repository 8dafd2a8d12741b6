from pathlib import Path

import numpy as np
import pytest

from headway.adapters.models.tensors import Planned, bfloat16_bits, write_bfloat16


def test_rounds_to_nearest_with_ties_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32)
    assert bfloat16_bits(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


def test_rounds_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(bfloat16_bits(values), expected)


def test_writes_a_file_that_safetensors_reads(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    one, two = np.full((2, 3), 1.5, np.float32), np.arange(4, dtype=np.float32)
    plan = [Planned(name="one", shape=(2, 3)), Planned(name="two", shape=(4,))]
    write_bfloat16(tmp_path / "x.safetensors", plan, iter([one, two]))
    read = library.load_file(str(tmp_path / "x.safetensors"))
    np.testing.assert_array_equal(read["one"].float().numpy(), one)
    np.testing.assert_array_equal(read["two"].float().numpy(), two)


def test_refuses_a_tensor_that_differs_from_its_plan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one has shape"):
        write_bfloat16(tmp_path / "x", [Planned(name="one", shape=(3,))], iter([np.zeros(2, np.float32)]))
