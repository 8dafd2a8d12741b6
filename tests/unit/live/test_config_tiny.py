"""What is served when nothing is said of models: text, and what the checkout can paint."""

from pathlib import Path

import pytest

from headway.live.config import Host, Resolved, resolve, set_layer


def tiny(folder: Path, *kinds: str) -> Host:
    for kind in kinds:
        (folder / kind).mkdir()
        (folder / kind / "model_index.json").write_text("{}")
    return Host(2, tiny=folder)


def made(resolved: Resolved) -> list[str]:
    return [model.makes for model in resolved.config.diffusion]


def test_pictures_and_videos_are_served_beside_text(tmp_path: Path) -> None:
    # SPEC H1, M1
    resolved = resolve([set_layer("server.port=0")], tiny(tmp_path, "image", "video"))
    assert made(resolved) == ["image", "video"]
    assert resolved.config.model.replicas == 1
    (told,) = [one for one in resolved.adjustments if one.key == "diffusion"]
    assert told.value == "tiny-flux, tiny-wan"


def test_only_what_is_there_is_served(tmp_path: Path) -> None:
    assert made(resolve([], tiny(tmp_path, "image"))) == ["image"]
    assert made(resolve([], Host(2))) == []


def test_the_student_answers_for_its_teacher_unless_the_route_says_otherwise(tmp_path: Path) -> None:
    # SPEC F5
    host = tiny(tmp_path, "image", "image_student")
    assert resolve([], host).config.front.routes["tiny-flux"].fallbacks == ("tiny-flux-fast",)
    said = resolve([set_layer("front.routes.tiny-flux.fallbacks=[]")], host)
    assert said.config.front.routes["tiny-flux"].fallbacks == ()


def test_without_the_student_nobody_answers_for_the_teacher(tmp_path: Path) -> None:
    assert "tiny-flux" not in resolve([], tiny(tmp_path, "image")).config.front.routes


@pytest.mark.parametrize("said", ["engine.kind=synthetic", "model.replicas=2", "diffusion=[]"])
def test_who_says_what_is_served_gets_that(said: str, tmp_path: Path) -> None:
    assert made(resolve([set_layer(said)], tiny(tmp_path, "image", "video"))) == []
