"""The catalogue of diffusion models against what is published about them."""

import pytest

from headway.core.errors import ConfigError
from headway.cost.diffusion_models import DIFFUSION_MODELS, DiffusionModel, diffusion_model

GIB = 2**30


@pytest.mark.parametrize("entry", DIFFUSION_MODELS.values(), ids=str)
def test_every_entry_says_where_its_numbers_come_from(entry: DiffusionModel) -> None:
    assert entry.source
    assert entry.date.startswith("202")


@pytest.mark.parametrize(
    ("name", "streams"),
    [("FLUX.1-dev", None), ("SD3.5-large", 38), ("Qwen-Image", 60)],
)
def test_weights_are_what_the_blocks_add_up_to(name: str, streams: int | None) -> None:
    entry = diffusion_model(name)
    square = entry.hidden**2
    # two streams: 2 * (12 + 6) d^2 a block; FLUX: 19 of those and 38 blocks of 15 d^2
    counted = (19 * 36 + 38 * 15) * square if streams is None else streams * 36 * square
    assert entry.parameters == pytest.approx(counted, rel=0.02)  # embeddings and projections are the rest


def test_flux_is_two_petaflop_and_22_gib() -> None:  # REFERENCE 6: seed 003 5
    flux = diffusion_model("FLUX.1-dev")
    tokens = 64 * 64 + 512
    assert 28 * sum(flux.flops(tokens)) == pytest.approx(2e15, rel=0.05)
    assert flux.weight_bytes == pytest.approx(22 * GIB, rel=0.02)
    assert 9 * GIB < flux.text_bytes < 14 * GIB
    assert 2 * flux.text_parameters * flux.text_length == pytest.approx(5e12, rel=0.05)


def test_a_vae_peaks_at_2_to_8_gib_for_pictures_and_100_for_a_video() -> None:  # REFERENCE 6: seed 003 5
    flux, wan = diffusion_model("FLUX.1-dev"), diffusion_model("Wan2.1-14B")
    assert flux.vae_peak_bytes(1024, 1024) == pytest.approx(2 * GIB, rel=0.01)
    assert flux.vae_peak_bytes(2048, 2048) == pytest.approx(8 * GIB, rel=0.01)
    assert wan.vae_peak_bytes(720, 1280, 81) == pytest.approx(100 * GIB, rel=0.01)
    assert wan.vae_peak_bytes(720, 1280, 81, tiles=16) < 7 * GIB


def test_experts_share_the_steps_but_not_the_memory() -> None:
    one, two = diffusion_model("Wan2.1-14B"), diffusion_model("Wan2.2-A14B")
    assert two.flops(1000) == one.flops(1000)
    assert two.weight_bytes == 2 * one.weight_bytes


def test_an_unknown_model_is_refused_with_those_that_are_known_and_a_user_may_add_one() -> None:
    with pytest.raises(ConfigError, match=r"'FLUX.2' is in no catalogue; known are FLUX.1-dev"):
        diffusion_model("FLUX.2")
    own = {"FLUX.2": diffusion_model("FLUX.1-dev")}
    assert diffusion_model("FLUX.2", own) is own["FLUX.2"]
