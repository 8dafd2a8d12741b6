import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headway.core.errors import ConfigError
from headway.engines.llm.weights import Checkpoint, fused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards with an index."""
    save_file({"a": torch.arange(6.0).view(2, 3)}, str(tmp_path / "one.safetensors"))
    save_file({"b": torch.ones(4, 3), "c": torch.zeros(2)}, str(tmp_path / "two.safetensors"))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_reads_a_tensor_from_the_shard_that_holds_it(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    assert torch.equal(checkpoint.tensor("a", 2, 3), torch.arange(6.0).view(2, 3))
    assert "c" in checkpoint
    assert "d" not in checkpoint


def test_stacks_matrices_of_one_input(folder: Path) -> None:
    stacked = fused(Checkpoint(folder), ["a", "b"], [2, 4], 3)
    assert torch.equal(stacked, torch.cat([torch.arange(6.0).view(2, 3), torch.ones(4, 3)]))


def test_names_a_tensor_that_is_missing_or_of_another_shape(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    with pytest.raises(ConfigError, match=r"has no tensor d, which its config\.json calls for"):
        checkpoint.tensor("d", 1)
    with pytest.raises(ConfigError, match=r"a has shape \(2, 3\), its config.json says \(3, 2\)"):
        checkpoint.tensor("a", 3, 2)


def test_refuses_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has neither"):
        Checkpoint(tmp_path)
