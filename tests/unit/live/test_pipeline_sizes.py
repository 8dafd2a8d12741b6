"""Sizes that a configuration names, and those that it leaves to the pipeline."""

import json
from pathlib import Path

import pytest
from tests.unit.live.test_config_models import given

from headway.core.errors import ConfigError
from headway.live.config_diffusion import diffusion_spec, picture_card
from headway.live.pipeline_sizes import default_size, own_size


def pipeline(folder: Path, kind: str, transformer: object = None, vae: object = None) -> Path:
    """A folder with the files that tell."""
    parts = {"transformer": transformer or {}, "vae": vae or {"block_out_channels": [8, 8, 8, 8]}}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": kind}))
    for part, config in parts.items():
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(config))
    return folder


# The defaults of the pipelines of diffusers 0.42 for the published weights (compared with them in
# tests/unit/engines/diffusion/test_loading.py).
@pytest.mark.parametrize(
    ("kind", "transformer", "vae", "size"),
    [
        ("FluxPipeline", {"in_channels": 64}, None, (1024, 1024)),
        ("StableDiffusion3Pipeline", {"sample_size": 128}, None, (1024, 1024)),
        ("PixArtSigmaPipeline", {"sample_size": 64}, None, (512, 512)),
        ("QwenImagePipeline", {}, {"temperal_downsample": [False, True, True]}, (1024, 1024)),
        ("WanPipeline", {}, {}, (832, 480)),
    ],
)
def test_a_pipeline_tells_what_it_makes(
    kind: str, transformer: object, vae: object, size: tuple[int, int], tmp_path: Path
) -> None:
    assert own_size(pipeline(tmp_path, kind, transformer, vae)) == size


@pytest.mark.parametrize(
    ("kind", "pixels_max", "size"),
    [
        ("FluxPipeline", 1 << 20, "1024x1024"),
        ("FluxPipeline", 1 << 18, "512x512"),
        ("FluxPipeline", 600 * 600 + 5, "592x592"),
        ("WanPipeline", 832 * 480 // 4, "416x240"),
        ("WanPipeline", 100_000, "416x240"),
    ],
)
def test_what_it_makes_is_bounded_in_its_own_form(kind: str, pixels_max: int, size: str, tmp_path: Path) -> None:
    assert default_size(pipeline(tmp_path, kind), pixels_max, 16) == size


def test_a_pipeline_that_does_not_tell_needs_a_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name size or sizes"):
        own_size(pipeline(tmp_path, "PixArtSigmaPipeline", {"patch_size": 2}))
    with pytest.raises(ConfigError, match="name size or sizes"):
        own_size(tmp_path / "nowhere")


# SPEC F8
def test_a_model_without_sizes_warms_what_its_pipeline_makes(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, "FluxPipeline")
    resolved = given("engine.kind=synthetic", f"diffusion=[{{name='a', folder='{folder}', pixels_max=262144}}]")
    (model,) = resolved.config.diffusion
    spec = diffusion_spec(model)
    assert spec.probes is not None
    assert [(shape.width, shape.height, most) for shape, most in spec.probes.batches] == [(512, 512, 4)]
    looks = picture_card(model, 0).pictures
    assert looks is not None
    assert looks.size == "512x512"  # what a request that names none gets is warm
    told = {adjustment.key: (adjustment.value, adjustment.reason) for adjustment in resolved.adjustments}
    assert told["diffusion[0].size"] == ("512x512", "what its pipeline makes, within pixels_max")


def test_the_first_of_sizes_is_the_usual_one(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, "FluxPipeline")
    fields = f"name='a', folder='{folder}', sizes=['96x64', '64x64']"
    resolved = given("engine.kind=synthetic", f"diffusion=[{{{fields}}}]")
    assert resolved.config.diffusion[0].usual_size == "96x64"
    assert [one.value for one in resolved.adjustments if one.key == "diffusion[0].size"] == ["96x64"]
