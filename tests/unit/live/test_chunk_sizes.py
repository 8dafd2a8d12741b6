"""Lengths of chunks in a configuration, and on the model's card (SPEC H5)."""

from pathlib import Path

import msgspec
import pytest
from tests.unit.live.test_config_diffusion import configured

from headway.core.errors import ConfigError
from headway.live.chunk_sizes import check_chunks
from headway.live.config_diffusion import picture_card, probes_of
from headway.live.config_diffusion_checks import check_diffusion
from headway.live.config_tiny import tiny_models


@pytest.mark.parametrize(
    ("context", "chunk", "fps", "words"),
    [
        (4, 0, 2, "m.context_frames = 4 and m.chunk_frames = 0: name both"),
        (0, 4, 2, "m.context_frames = 0 and m.chunk_frames = 4: name both"),
        (4, 4, 0, "m.context_frames = 4 needs m.fps"),
        (8, 4, 2, "m.context_frames = 8 is above m.chunk_frames = 4"),
    ],
)
def test_lengths_that_no_model_could_mean_are_refused(context: int, chunk: int, fps: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_chunks("m", context, chunk, fps)
    check_chunks("m", 4, 8, 2)
    check_chunks("m", 0, 0, 0)


def test_a_configuration_that_names_one_length_alone_is_refused_by_key() -> None:
    config = configured('diffusion=[{name = "v", engine = "synthetic", fps = 2}]')
    (model,) = config.diffusion
    with pytest.raises(ConfigError, match=r"diffusion\[0\]\.context_frames = 4 and"):
        check_diffusion([msgspec.structs.replace(model, context_frames=4)])


def test_the_tiny_video_model_makes_chunks_of_two_seconds_and_warms_both_shapes(tmp_path: Path) -> None:  # SPEC F8
    (tmp_path / "video").mkdir()
    (tmp_path / "video" / "model_index.json").write_text("{}")
    (model,) = tiny_models(tmp_path)
    looks = picture_card(model, 0).pictures
    assert looks is not None
    assert (looks.context_frames, looks.chunk_frames, looks.fps) == (4, 4, 2)
    frames = [shape.frames for shape, _most in probes_of(model).batches]
    assert {4, 8} <= set(frames)
    assert len(frames) == len(set(frames))
