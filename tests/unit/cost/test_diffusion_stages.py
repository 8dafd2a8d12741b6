"""Monolith or split, per stage: the three rules of seed 003 5."""

from headway.core.request import DenoiseShape
from headway.cost.devices import find_device
from headway.cost.diffusion_devices import Execution
from headway.cost.diffusion_models import diffusion_model
from headway.cost.diffusion_stages import advise

H100 = find_device("H100-SXM")
PICTURE, VIDEO = DenoiseShape(1024, 1024), DenoiseShape(720, 1280, frames=81)


def split(model: str, shape: DenoiseShape, device: str = "H100-SXM", models: int = 1) -> list[str]:
    found = advise(diffusion_model(model), find_device(device), Execution(), shape, models)
    return [advice.stage for advice in found if advice.is_split]


def test_pictures_to_1024_squared_stay_in_one_process() -> None:  # SPEC G1
    for model in ("FLUX.1-dev", "SD3.5-large", "Qwen-Image"):
        assert split(model, PICTURE) == []


def test_a_videos_vae_has_devices_of_its_own() -> None:  # SPEC G1: 100 GiB at the peak
    for model in ("Wan2.1-14B", "Wan2.1-1.3B", "HunyuanVideo"):
        assert "vae_decode" in split(model, VIDEO)


def test_a_request_through_several_models_must_be_split() -> None:  # SPEC G1, G8
    assert split("FLUX.1-dev", PICTURE, models=2) == ["text_encode", "vae_decode"]


def test_a_small_device_has_no_room_for_text_encoders() -> None:
    assert "text_encode" in split("SD3.5-large", PICTURE, "RTX-4090")


def test_a_reason_says_what_was_compared() -> None:
    text, vae = advise(diffusion_model("Wan2.1-14B"), H100, Execution(), VIDEO)
    assert text.reason == (
        "text encoders hold 10.6 GiB, 45.0 GiB are free beside the denoiser: a hop would only add latency"
    )
    assert vae.reason.startswith("the VAE peaks at 100.1 GiB, 34.4 GiB are free beside the denoiser: ")
    assert vae.reason.endswith("a hop of 9.7 MB")
