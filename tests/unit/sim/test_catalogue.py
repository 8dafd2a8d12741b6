from pathlib import Path

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.cost.devices import find_device
from headway.sim.catalogue import Additions, Catalogue

CONFIG = b"""{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
"vocab_size": 1000, "max_position_embeddings": 512}"""


def test_an_addition_counts_in_place_of_a_known_name() -> None:
    fast = msgspec.structs.replace(find_device("H100-SXM"), bytes_per_s=1e15)
    assert Catalogue(Additions(devices=(fast,))).device("H100-SXM").bytes_per_s == 1e15
    assert Catalogue(Additions()).device("H100-SXM").bytes_per_s < 1e13


def test_a_model_is_read_from_its_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(CONFIG)
    model = Catalogue(Additions(hf_configs={"mine": str(path)})).model("mine")
    assert (model.layers, model.kv_bytes_per_token()) == (2, 2 * 2 * 2 * 16 * 2)  # REFERENCE 2: 2 L n_kv d_h b


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), (b"{", "is not JSON")])
def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"catalogue.hf_configs.mine = .*{words}"):
        Catalogue(Additions(hf_configs={"mine": str(path)}))
