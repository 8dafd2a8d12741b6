"""Models on devices against published times (field/simulators.md 4, rows 25 to 34, and seed 003 1).

Sources disagree by 12 % on one nominal configuration (rows 27 to 29: 23.6, 24.9 and 26.4 s); nothing is held tighter
than that unless it was fitted. `OFF` lists what the model gets wrong by more than its tolerance for such rows, with
the error, so that nobody trusts it there.
"""

import pytest

from headway.core.errors import ConfigError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.cost.devices import find_device
from headway.cost.diffusion import gain, stages, step_ns, tokens_of
from headway.cost.diffusion_devices import (
    Execution,
    batch_pixels_fit,
    chip,
    coefficients,
    merge_s,
    pixels_fit,
    work_memory,
)
from headway.cost.diffusion_memory import decode_bytes, step_bytes
from headway.cost.diffusion_models import diffusion_model

H100 = chip(find_device("H100-SXM"))
EAGER = Execution(compiled=False, flash3=False)
SPREAD = 0.12


def case(model: str, size: tuple[int, int, int], steps: int) -> DiffusionRequest:
    height, width, frames = size
    return DiffusionRequest(
        RequestId("req-1"),
        TenantId("t"),
        ModelId(model),
        steps,
        height,
        width,
        1,
        0,
        frames=frames,
    )


def seconds(
    model: str, device: str, run: Execution, size: tuple[int, int, int] = (1024, 1024, 1), steps: int = 28
) -> float:
    return stages(coefficients(diffusion_model(model), chip(find_device(device)), run), case(model, size, steps)).total


def iteration(model: str, device: str, run: Execution, size: tuple[int, int, int]) -> float:
    return (
        step_ns(coefficients(diffusion_model(model), chip(find_device(device)), run), case(model, size, 1).shape) / 1e9
    )


H720 = (720, 1280, 129)
FITTED = [  # the shares of the peak come from these; held to 3 %
    ("FLUX.1-dev", "H100-SXM", Execution(), (1024, 1024, 1), 28, 3.9),
    ("FLUX.1-dev", "H100-SXM", Execution(fp8=True), (1024, 1024, 1), 28, 2.9),
    ("FLUX.1-dev", "L20", Execution(), (1024, 1024, 1), 28, 20.24),
    ("HunyuanVideo", "L20", EAGER, H720, 30, 3676.0),
]
HELD_OUT = [
    ("FLUX.1-dev", "H100-SXM", EAGER, (1024, 1024, 1), 50, 9.30),  # row 25
    ("FLUX.1-dev", "H100-SXM", Execution(compiled=False, flash3=False, sp=2), (1024, 1024, 1), 50, 6.04),
    ("Qwen-Image", "H100-SXM", EAGER, (1024, 1024, 1), 50, 18.49),  # row 26
    ("FLUX.1-dev", "L20", EAGER, (1024, 1024, 1), 28, 23.56),  # row 27
    ("FLUX.1-dev", "L20", EAGER, (1024, 1024, 1), 28, 26.36),  # row 28
    ("FLUX.1-dev", "L20", EAGER, (1024, 1024, 1), 28, 24.94),  # row 29
    ("FLUX.1-dev", "L20", Execution(compiled=False, sp=2), (1024, 1024, 1), 28, 13.80),
    ("FLUX.1-dev", "L20", Execution(compiled=False, sp=4), (1024, 1024, 1), 28, 8.28),
    ("FLUX.1-dev", "L20", Execution(sp=4), (1024, 1024, 1), 28, 7.27),
    ("FLUX.1-dev", "L20", Execution(sp=2), (1024, 1024, 1), 28, 12.21),  # cache-dit, async fp8 Ulysses table
]
OFF = [  # model, device, how, size, steps, published, our error
    ("FLUX.1-dev", "H100-SXM", EAGER, (1024, 1024, 1), 28, 6.7, -0.21),  # seed 003 1; row 25 implies 5.2 s
    ("FLUX.1-schnell", "H100-SXM", Execution(), (1024, 1024, 1), 4, 0.8, -0.21),  # seed 003 1
    ("FLUX.1-dev", "H100-SXM", Execution(compiled=False, sp=2), (1024, 1024, 1), 50, 5.99, -0.17),  # + FA3: 1 % there
    ("Qwen-Image", "H100-SXM", Execution(compiled=False, flash3=False, sp=2), (1024, 1024, 1), 50, 12.81, -0.26),
    ("FLUX.1-dev", "L20", Execution(fp8=True), (1024, 1024, 1), 28, 13.40, 0.14),  # row 28
]
WAN_480P = (480, 832, 81)
ITERATIONS = [  # rows 31 to 33, seconds per step with guidance; published, our error
    ("Wan2.1-14B", "H100-SXM", EAGER, 9.77, -0.18),  # Diffusers; engines lie between 9.77 and 5.18
    ("Wan2.1-14B", "H100-SXM", Execution(), 6.13, -0.11),  # SGLang
    ("Wan2.1-14B", "H100-SXM", Execution(sp=8), 1.19, -0.39),  # SGLang; LightX2V has 0.75
    ("Wan2.1-1.3B", "A100-80G", EAGER, 4.91, -0.41),  # FastVideo's baseline; 3.78 optimised
]

Row = tuple[str, str, Execution, tuple[int, int, int], int, float]


@pytest.mark.parametrize("row", FITTED, ids=lambda row: f"{row[0]}-{row[1]}-{row[5]}")
def test_a_row_that_was_fitted_comes_out(row: Row) -> None:  # SPEC F2, F3
    *what, published = row
    assert seconds(*what) == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("row", HELD_OUT, ids=lambda row: f"{row[0]}-{row[1]}-{row[5]}")
def test_a_row_that_was_not_fitted_is_within_the_spread_of_sources(row: Row) -> None:  # SPEC F2
    *what, published = row
    assert seconds(*what) == pytest.approx(published, rel=SPREAD)


@pytest.mark.parametrize("row", OFF, ids=lambda row: f"{row[0]}-{row[1]}-{row[5]}")
def test_where_the_model_is_off_it_is_known_by_how_much(
    row: tuple[str, str, Execution, tuple[int, int, int], int, float, float],
) -> None:
    *what, published, error = row
    assert seconds(*what) / published - 1 == pytest.approx(error, abs=0.02)


@pytest.mark.parametrize("row", ITERATIONS, ids=lambda row: f"{row[0]}-{row[3]}")
def test_steps_of_video_are_off_by_a_known_share(row: tuple[str, str, Execution, float, float]) -> None:
    model, device, run, published, error = row
    assert iteration(model, device, run, WAN_480P) / published - 1 == pytest.approx(error, abs=0.02)


def test_wan_without_any_optimisation_takes_half_an_hour() -> None:  # seed 003 1: 24 minutes; ours: 27.6
    assert seconds("Wan2.1-14B", "H100-SXM", EAGER, (720, 1280, 81), 50) / 60 == pytest.approx(24, rel=0.16)


def test_a_step_cache_divides_the_steps_and_nothing_else() -> None:  # row 28: 26.36 -> 17.01 s is 1.56 with FBCache
    plain = stages(
        coefficients(diffusion_model("FLUX.1-dev"), chip(find_device("L20")), EAGER),
        case("FLUX.1-dev", (1024, 1024, 1), 28),
    )
    cached = Execution(compiled=False, flash3=False, step_cache=1.56)
    faster = stages(
        coefficients(diffusion_model("FLUX.1-dev"), chip(find_device("L20")), cached),
        case("FLUX.1-dev", (1024, 1024, 1), 28),
    )
    assert faster.denoise == pytest.approx(plain.denoise / 1.56)
    assert faster.vae_decode == plain.vae_decode
    assert faster.total == pytest.approx(17.01, rel=SPREAD)


def test_stage_times_are_those_of_the_seed() -> None:  # REFERENCE 6: seed 003 5
    parts = stages(
        coefficients(diffusion_model("FLUX.1-dev"), H100, Execution()),
        case("FLUX.1-dev", (1024, 1024, 1), 28),
    )
    assert 0.02 <= parts.text_encode <= 0.07
    assert parts.vae_decode == pytest.approx(0.1, rel=0.01)


def test_sequence_parallelism_lowers_latency_and_costs_gpu_seconds() -> None:  # SPEC F3
    alone, four = seconds("FLUX.1-dev", "H100-SXM", Execution()), seconds("FLUX.1-dev", "H100-SXM", Execution(sp=4))
    assert alone / 4 < four < alone
    assert 4 * four > alone
    # Seed 003 1's row of 1.6 s on four devices: 61 % over the whole request, 70 % over what is split.
    as_printed = seconds("FLUX.1-dev", "H100-SXM", Execution(sp=4, sp_efficiency=0.7))
    assert as_printed == pytest.approx(1.6, rel=0.03)
    assert alone / (4 * as_printed) == pytest.approx(0.61, rel=0.03)


def test_guidance_on_two_groups_halves_a_step() -> None:  # SPEC G7
    one = iteration("Qwen-Image", "H100-SXM", Execution(), (1024, 1024, 1))
    two = iteration("Qwen-Image", "H100-SXM", Execution(cfg_parallel=True), (1024, 1024, 1))
    assert two == pytest.approx(one / 2, rel=0.04)  # half a wave of tiles is not split
    with pytest.raises(ConfigError, match=r"cfg_parallel needs two passes per step; FLUX.1-dev makes 1"):
        coefficients(diffusion_model("FLUX.1-dev"), H100, Execution(cfg_parallel=True))


def test_batches_pay_for_small_models_and_low_resolution_only() -> None:  # SPEC F4, seed 003 3
    # Seed 003 has 2-3 x for SD3-Turbo at 512^2 in batches of 4 to 8, without saying on what; an H100 that waits for no
    # host is saturated sooner: 1.2 there, 1.8 at 256^2.
    def gain_of(model: str, side: int) -> float:
        cost = coefficients(diffusion_model(model), H100, EAGER)
        return gain(cost, DenoiseShape(side, side, passes=1), 4)

    assert gain_of("FLUX.1-dev", 1024) < 1.05
    assert gain_of("SD3.5-medium", 512) == pytest.approx(1.2, abs=0.05)
    assert gain_of("SD3.5-medium", 256) > 1.5
    assert gain_of("FLUX.1-dev", 1024) < gain_of("FLUX.1-dev", 256)


def test_a_merged_adapter_costs_no_step_and_a_merge_moves_all_weights_twice() -> None:  # SPEC F2, seed 003 6
    flux = diffusion_model("FLUX.1-dev")
    wrapped = coefficients(flux, H100, Execution())
    assert 0.02 <= wrapped.lora_share <= 0.05
    merged = coefficients(flux, H100, Execution(lora="merged"))
    assert (merged.lora_share, wrapped.merge_ns) == (0.0, 0.0)
    assert merged.merge_ns == pytest.approx(0.0167e9, rel=0.01)  # at 0.85 of the bandwidth
    assert 0.15 <= wrapped.control_share <= 0.30
    assert merge_s(flux, 3.35e12) == pytest.approx(0.0142, rel=0.01)


def test_a_device_that_nobody_measured_is_refused_and_a_user_may_say_what_it_reaches() -> None:
    b200 = find_device("B200")
    with pytest.raises(ConfigError, match="no denoiser was measured on device 'B200'; known are H100-SXM"):
        chip(b200)
    assert chip(b200, reaches={"B200": H100.reach}).link.name == "nvlink5"


def test_fp8_needs_products_in_fp8() -> None:
    with pytest.raises(ConfigError, match="fp8 = true needs fp8 products, and A100-80G has none"):
        coefficients(diffusion_model("FLUX.1-dev"), chip(find_device("A100-80G")), Execution(fp8=True))


def test_pixels_fit_beside_the_weights_and_more_of_them_in_tiles() -> None:
    # vllm-omni#2327: 720p video runs out of memory in the VAE after all its steps are paid
    h100, wan = find_device("H100-SXM"), diffusion_model("Wan2.1-14B")
    video = 81 * 720 * 1280
    assert pixels_fit(wan, h100, Execution()) < video < pixels_fit(wan, h100, Execution(vae_tiles=4))
    assert pixels_fit(wan, h100, Execution(text_resident=False)) > pixels_fit(wan, h100, Execution())
    assert pixels_fit(wan, find_device("RTX-4090"), Execution()) < 0
    flux = pixels_fit(diffusion_model("FLUX.1-dev"), find_device("RTX-4090"), Execution(fp8=True, text_resident=False))
    assert flux > 2048 * 2048


def test_a_video_of_720p_takes_14_gib_of_activations_and_two_of_them_do_not_fit() -> None:  # SPEC F4, seed 003 3
    wan, h100, video = diffusion_model("Wan2.1-14B"), find_device("H100-SXM"), 720 * 1280 * 81
    resident = Execution(text_resident=False)
    room = h100.memory_bytes * 0.9 - wan.weight_bytes
    one = batch_pixels_fit(wan, h100, resident, 1)
    assert room / (one / video) / 2**30 == pytest.approx(
        14, rel=0.06
    )  # the first frame's tokens, 1 of 21, are left out
    guided = batch_pixels_fit(wan, h100, resident, 2)
    assert guided == pytest.approx(one / 2, abs=1)
    assert video <= guided < 2 * video


def test_more_devices_of_a_group_hold_larger_batches_and_smaller_devices_smaller_ones() -> None:  # SPEC F4
    flux = diffusion_model("FLUX.1-dev")
    h100 = batch_pixels_fit(flux, find_device("H100-SXM"), Execution(), 1)
    assert batch_pixels_fit(flux, find_device("H100-SXM"), Execution(sp=2), 1) == pytest.approx(2 * h100, abs=2)
    assert batch_pixels_fit(flux, find_device("L20"), Execution(text_resident=False), 1) < h100 / 2


def test_what_work_holds_agrees_with_what_fits() -> None:  # SPEC F4: the simulator's limits and a live replica's
    h100, flux = find_device("H100-SXM"), diffusion_model("FLUX.1-dev")
    cost = coefficients(flux, chip(h100), Execution())
    memory = work_memory(flux, h100, Execution())
    assert memory.room is not None
    edge = 2048
    most = pixels_fit(flux, h100, Execution())
    assert decode_bytes(memory, DenoiseShape(edge, edge), 1) / memory.room == pytest.approx(edge**2 / most, rel=1e-6)
    together = batch_pixels_fit(flux, h100, Execution(), 1)
    shape = DenoiseShape(edge, edge, passes=1)
    prompt = tokens_of(cost, shape) / (edge // flux.patch) ** 2  # which the pixels leave out
    assert step_bytes(memory, cost, shape, 3) / memory.room == pytest.approx(3 * edge**2 / together * prompt, rel=1e-6)
