"""`headway serve` with an IP-Adapter: from the configuration to pixels."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.serving import Server, serve

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from PIL import Image
from tests.unit.engines.diffusion.ip_adapters import save_adapter

FOLDER = Path(__file__).parents[2] / "models" / "tiny" / "image"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("state")
    adapter = save_adapter(state / "adapter", width=128, blocks=2)
    painter = f"name='painter', folder='{FOLDER}', sizes=['64x64'], steps=2, ip_adapter='{adapter}'"
    models = f"diffusion=[{{{painter}, scheduler={{batch_max=1}}}}, {{name='plain', engine='synthetic'}}]"
    with serve("--set", "model.replicas=0", "--set", models, HEADWAY_STATE=str(state)) as found:
        yield found
        found.process.terminate()
        assert found.end() == 0
        assert not any("Traceback" in line for line in found.errors), found.errors


def shown(colour: tuple[int, int, int]) -> str:
    out = io.BytesIO()
    Image.new("RGB", (40, 24), colour).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def post(server: Server, path: str, **body: object) -> tuple[int, dict[str, object]]:
    status, answer = server.call(path, body)
    return status, json.loads(answer)


def draw(server: Server, **fields: object) -> tuple[bytes, dict[str, object]]:
    """The picture, and what was used for it."""
    asked = {"model": "painter", "prompt": "a red circle", "seed": 3, **fields}
    status, answer = post(server, "/v1/images/generations", **asked)
    assert status == 200, answer
    return base64.b64decode(answer["data"][0]["b64_json"]), answer["parameters"]


# SPEC F1, G2
def test_an_image_prompt_changes_the_picture_and_again_in_the_same_way(server: Server) -> None:
    red, blue = shown((255, 0, 0)), shown((0, 0, 255))
    plain, said = draw(server)
    assert "image_prompts" not in said
    first, said = draw(server, image_prompt=red)
    assert (said["image_prompts"], said["image_prompt_scale"]) == (1, 1.0)
    assert draw(server, image_prompt=red)[0] == first
    others = [draw(server, image_prompt=blue), draw(server, image_prompt=red, image_prompt_scale=0.5)]
    assert len({plain, first, *(picture for picture, _ in others)}) == 4
    assert draw(server, image_prompt=red, image_prompt_scale=0)[0] == draw(server)[0] == plain


# SPEC F2: measured by the warm-up
def test_an_estimate_has_the_time_of_its_encoder(server: Server) -> None:
    took = []
    for more in ({}, {"image_prompt": shown((1, 2, 3))}):
        body = {"model": "painter", "prompt": "a red circle", **more}
        status, answer = post(server, "/v1/estimates", endpoint="/v1/images/generations", body=body)
        assert status == 200, answer
        took.append(answer["stage_seconds"]["text_encode"])
    assert took[1] > took[0]


# SPEC F1
def test_a_model_without_an_adapter_names_the_one_that_has_one(server: Server) -> None:
    status, answer = post(server, "/v1/images/generations", model="plain", prompt="x", image_prompt=shown((0, 0, 0)))
    assert (status, answer["error"]["param"]) == (400, "image_prompt")
    assert "`painter`" in answer["error"]["message"]
