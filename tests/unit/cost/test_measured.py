"""Corrections of the roofline by measurements."""

import itertools

import pytest

from headway.cost.closed_loop import ClosedLoop
from headway.cost.deployment import Deployment, Layout
from headway.cost.devices import find_device
from headway.cost.llm import StepShape
from headway.cost.measured import PRIOR, CorrectedStep, Correction, corrected, find_correction, predict, roofline_of
from headway.cost.measured_fit import Measurement, fit_corrections
from headway.cost.measured_silicon import CORRECTIONS
from headway.cost.models_catalogue import find_model

TRUTH = Correction(
    0, scale=1.2, step_ms=2.0, row_ms=0.05, base_ms=30.0, prompt=1.5, crowd=0.1, text_ms=4.0, texts_ms=0.5
)


def replica(tp: int = 2, model: str = "llama-3.1-70b", device: str = "H100-SXM") -> Deployment:
    return Deployment(model=find_model(model), device=find_device(device), layout=Layout(tp=tp), dtype="fp8")


def measured(truth: Correction, engine: str = "e", device: str = "H100-SXM") -> list[Measurement]:
    found = []
    for tp, prompt, crowd in itertools.product((2, 4, 8), (512, 2048, 8192), (1, 8, 64)):
        deployment, load = replica(tp, device=device), ClosedLoop(prompt, 512, crowd)
        ttft, tpot, _, _ = predict(deployment, engine, load, {(engine,): truth})
        found.append(Measurement(deployment, engine, load, ttft, tpot))
    return found


def test_a_fit_finds_the_correction_that_the_rows_were_made_with() -> None:  # SPEC J3
    found = fit_corrections(measured(TRUTH))["e", "llama-3.1-70b", "H100-SXM", "fp8"]
    assert found.rows == 27
    for name in ("scale", "step_ms", "row_ms"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.1), name
    unseen = ClosedLoop(4096, 256, 32)
    said, true = (predict(replica(4), "e", unseen, {("e",): correction}) for correction in (found, TRUTH))
    assert said.tpot_ms == pytest.approx(true.tpot_ms, rel=0.03)
    assert said.ttft_ms == pytest.approx(true.ttft_ms, rel=0.03)


def test_one_row_stays_near_what_its_parent_says() -> None:
    """A single measurement that is five times too slow moves its own level half of the way at most."""
    odd = measured(TRUTH, device="H200")[:1]
    odd = [odd[0]._replace(tpot_ms=5 * odd[0].tpot_ms)]
    found = fit_corrections([*measured(TRUTH), *odd])
    fine = found["e", "llama-3.1-70b", "H200", "fp8"]
    said = predict(replica(device="H200"), "e", odd[0].load, {("e",): fine}).tpot_ms
    assert odd[0].tpot_ms / 5 < said < odd[0].tpot_ms * 0.8


def test_what_was_never_measured_takes_the_nearest_that_was() -> None:
    key = ("vllm", "llama-3.1-70b", "H100-SXM", "fp8")
    known = {key: TRUTH, key[:2]: PRIOR, key[:1]: PRIOR}
    assert find_correction(key, known)[0] == key
    assert find_correction((*key[:3], "bfloat16"), known)[0] == key[:2]
    assert find_correction(("vllm", "opt-13b", "A10", "float16"), known)[0] == key[:1]
    assert find_correction(("nobody", "opt-13b", "A10", "float16"), known) == ((), PRIOR)


def test_a_corrected_step_is_slower_by_what_the_roofline_does_not_explain() -> None:
    roofline, shape = roofline_of(replica()), StepShape(8, 8000)
    step = CorrectedStep(roofline, TRUTH)
    assert step.step_ns(shape) == pytest.approx(1.2 * roofline.step_ns(shape) + 2e6)
    assert step.host_ns(8) == pytest.approx(0.05e6 * 8)


# From aiconfigurator-core 0.12.0, Apache-2.0: concurrency, TTFT ms, TPOT ms; 1024 tokens in, 1024 out; vLLM, fp8.
ROWS = [
    ("H100-SXM", 2, 4, 121.3, 17.41),
    ("H100-SXM", 2, 64, 415.1, 28.77),
    ("H100-SXM", 4, 16, 121.4, 13.19),
    ("H100-SXM", 4, 64, 256.4, 19.51),
    ("H100-SXM", 8, 32, 124.4, 12.64),
    ("H200", 1, 4, 202.8, 21.47),
    ("H200", 1, 64, 729.7, 37.44),
    ("H200", 2, 64, 417.0, 22.71),
]


# aiconfigurator#1205, inference-sim#482: the fit has seen these rows; it must not drift away from them when the
# roofline below it changes. Tolerances: nine of ten rows of these devices, TPOT and TTFT each (LLMServingSim PR#59).
@pytest.mark.parametrize(("device", "tp", "crowd", "ttft_ms", "tpot_ms"), ROWS)
def test_shipped_corrections_still_say_what_they_were_fitted_to(
    device: str, tp: int, crowd: int, ttft_ms: float, tpot_ms: float
) -> None:
    found = predict(replica(tp, device=device), "vllm", ClosedLoop(1024, 1024, crowd), CORRECTIONS)
    assert len(found.near) == 4
    assert found.tpot_ms == pytest.approx(tpot_ms, rel=0.10)
    assert found.ttft_ms == pytest.approx(ttft_ms, rel=0.20)


def test_a_deployment_gets_the_finest_correction_there_is() -> None:
    assert corrected(replica(), "vllm", CORRECTIONS)[1] == ("vllm", "llama-3.1-70b", "H100-SXM", "fp8")
    assert corrected(replica(model="opt-13b"), "vllm", CORRECTIONS)[1] == ("vllm",)
