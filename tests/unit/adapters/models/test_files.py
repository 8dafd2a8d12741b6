import json
from pathlib import Path

import pytest

from headway.adapters.models.errors import ModelError
from headway.adapters.models.files import files_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_lists_the_shards_of_an_index_once_each(folder: Path) -> None:
    weight_map = {"a": "model-00002.safetensors", "b": "model-00001.safetensors", "c": "model-00001.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for shard in set(weight_map.values()):
        (folder / shard).touch()
    assert [path.name for path in files_in(folder, "m").weights] == [
        "model-00001.safetensors",
        "model-00002.safetensors",
    ]


def test_names_the_first_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00001.safetensors").touch()
    with pytest.raises(ModelError, match=r"lacks 1 of 2 shards, the first is model-00002\.safetensors"):
        files_in(folder, "m")


def test_names_a_missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        files_in(folder, "m")


def test_refuses_a_folder_without_safetensors(folder: Path) -> None:
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match="other weight formats are not read"):
        files_in(folder, "m")


@pytest.mark.parametrize(
    "template", ["plain", [{"name": "tool", "template": "t"}, {"name": "default", "template": "plain"}]]
)
def test_reads_the_chat_template_of_the_tokenizer_config(folder: Path, template: object) -> None:
    (folder / "model.safetensors").touch()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert files_in(folder, "m").chat_template == "plain"


def test_prefers_the_template_file(folder: Path) -> None:
    (folder / "model.safetensors").touch()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (folder / "chat_template.jinja").write_text("new")
    assert files_in(folder, "m").chat_template == "new"


def test_has_no_template_where_the_model_has_none(folder: Path) -> None:
    (folder / "model.safetensors").touch()
    assert files_in(folder, "m").chat_template is None
