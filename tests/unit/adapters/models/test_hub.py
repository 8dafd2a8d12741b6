import pytest

from headway.adapters.models.errors import ModelError
from headway.adapters.models.hub import hub_folder, is_hub_id


@pytest.mark.parametrize(
    ("model", "claim"),
    [("owner/name", True), ("Qwen/Qwen2.5-0.5B", True), ("name", False), ("/srv/model", False), ("./a/b", False)],
)
def test_a_hub_id_is_owner_slash_name(model: str, claim: bool) -> None:
    assert is_hub_id(model) is claim


def test_says_what_to_do_when_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="go online, or pass a local folder"):
        hub_folder("headway-tests/absent-model")
