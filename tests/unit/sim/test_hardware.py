import pytest

from headway.core.plans import Chunk, StepPlan
from headway.cost.devices import find_device
from headway.cost.models_catalogue import find_model
from headway.sim.hardware import A100, H100, LLAMA_70B, DeviceTruth, RooflineTruth

EXACT = RooflineTruth(jitter=0.0)


def decode(batch: int, context: int, step: int = 1) -> StepPlan:
    return StepPlan(step, 0, "decode", decodes=batch, kv_tokens=batch * context)


def prefill(start: int, count: int) -> StepPlan:
    return StepPlan(1, 0, "prefill", chunks=(Chunk(1, start, count, False),), prefill_tokens=count)


def test_a_decode_of_llama_70b_on_eight_h100_takes_what_is_published() -> None:
    # field/papers.md, 3: H100 TP8 Llama-70B ITL 9.5-10.4 ms
    assert 9.5e6 <= EXACT.step_ns(decode(1, 1000)) <= 10.4e6


def test_kv_beside_the_weights() -> None:
    # 8 x 80 GB x 0.9 less 141 GB of weights and 10 GB, at 327,680 bytes per token (REFERENCE 2)
    assert EXACT.kv_tokens() == pytest.approx(1_297_000, rel=0.01)


def test_prefill_is_bound_by_compute_and_decode_by_memory() -> None:
    assert EXACT.step_ns(prefill(0, 4096)) == pytest.approx(2 * EXACT.step_ns(prefill(0, 2048)), rel=0.05)
    assert EXACT.step_ns(decode(16, 100)) < 1.05 * EXACT.step_ns(decode(1, 100))


def test_context_costs() -> None:
    assert EXACT.step_ns(decode(16, 100_000)) > 1.5 * EXACT.step_ns(decode(16, 100))
    assert EXACT.step_ns(prefill(100_000, 2048)) > 1.5 * EXACT.step_ns(prefill(0, 2048))


def test_an_a100_prefills_about_three_times_slower() -> None:  # 989 / 312 of the peak
    ratio = RooflineTruth(device=A100, jitter=0.0).step_ns(prefill(0, 2048)) / EXACT.step_ns(prefill(0, 2048))
    assert 2.5 < ratio < 3.3


def test_noise_is_bounded_repeatable_and_centred() -> None:  # SPEC J6
    noisy = RooflineTruth(jitter=0.1, seed=3)
    exact = EXACT.step_ns(decode(4, 1000))
    times = [noisy.step_ns(decode(4, 1000, step)) for step in range(1, 401)]
    assert times == [noisy.step_ns(decode(4, 1000, step)) for step in range(1, 401)]
    assert all(0.9 * exact <= took <= 1.1 * exact for took in times)
    assert sum(times) / len(times) == pytest.approx(exact, rel=0.01)
    assert max(times) > 1.05 * exact > 0.95 * exact > min(times)


@pytest.mark.parametrize(("truth", "name"), [(H100, "H100-SXM"), (A100, "A100-80G")])
def test_peaks_are_those_of_the_catalogue(truth: DeviceTruth, name: str) -> None:
    device = find_device(name)
    assert truth.flops == device.flops_of("bfloat16")
    assert truth.bytes_per_s == pytest.approx(device.bytes_per_s, rel=0.001)
    assert truth.memory_bytes == pytest.approx(device.memory_bytes, rel=0.08)  # the data sheet's round 80 GB


def test_the_model_is_that_of_the_catalogue() -> None:
    model = find_model("llama-3.1-70b")
    assert LLAMA_70B.parameters == pytest.approx(model.parameters, rel=0.001)
    assert LLAMA_70B.kv_bytes_per_token == model.kv_bytes_per_token()
