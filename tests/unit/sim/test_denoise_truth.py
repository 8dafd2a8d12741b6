"""What denoise plans really take in a simulation."""

import pytest

from headway.core.errors import InvariantError
from headway.core.ids import NodeId
from headway.core.plans import DenoisePlan, DenoiseRow, StepPlan
from headway.core.reports import DenoiseCoefficients
from headway.cost.diffusion_belief import plan_ns
from headway.sim.denoise_truth import DenoiseTruth
from headway.sim.pools import TruthParams

COST = DenoiseCoefficients(1e6, 0.0, 1e4, 1.0, text_ns=5e6, decode_ns=100.0)


def plan(step: int) -> DenoisePlan:
    return DenoisePlan(step, step - 1, (DenoiseRow(1, 0, 4, 4),), 256, 256)


def truth(replica: str = "rep-0", seed: int = 1, **params: float) -> DenoiseTruth:
    return DenoiseTruth(
        COST, TruthParams(**{"scale": 1.0, "jitter": 0.0, "spread": 0.0, **params}), seed, NodeId(replica)
    )


def test_without_perturbation_it_is_the_model_with_encode_and_decode() -> None:  # SPEC J3
    assert truth().denoise_ns(plan(1)) == round(plan_ns(COST, plan(1)))
    assert truth().denoise_ns(plan(1)) > 5_000_000 + 100 * 256 * 256


def test_it_is_off_by_scale_spread_and_jitter() -> None:
    exact = plan_ns(COST, plan(1))
    assert truth(scale=1.5).denoise_ns(plan(1)) == round(1.5 * exact)
    spread = [truth(f"rep-{n}", spread=0.1).denoise_ns(plan(1)) / exact for n in range(20)]
    assert len(set(spread)) == 20
    assert all(0.9 <= one <= 1.1 for one in spread)
    jitter = [truth(jitter=0.1).denoise_ns(plan(step)) / exact for step in range(20)]
    assert len(set(jitter)) == 20
    assert all(0.9 <= one <= 1.1 for one in jitter)


# SPEC F1, F8
@pytest.mark.parametrize(("start", "is_first"), [(0, False), (2, True), (3, False)])
def test_an_edit_compiles_with_its_first_step_that_is_computed(start: int, is_first: bool) -> None:
    edit = DenoisePlan(1, 0, (DenoiseRow(1, start, 1, 9, skipped=2),), 256, 256, is_cold=True)
    cold = DenoiseTruth(COST, TruthParams(scale=1.0, jitter=0.0, spread=0.0), 1, NodeId("rep-0"), 5000)
    assert cold.denoise_ns(edit) - round(plan_ns(COST, edit)) == 5000 * is_first


def test_a_straggler_is_slower_from_then_on() -> None:  # SPEC J4
    slow = truth()
    slow.slowdown = 3.0
    assert slow.denoise_ns(plan(1)) == round(3 * plan_ns(COST, plan(1)))


def test_it_runs_no_llm_step() -> None:
    with pytest.raises(InvariantError, match="runs no LLM step"):
        truth().step_ns(StepPlan(1, 0, "decode"))
    with pytest.raises(InvariantError, match="plans no LLM step"):
        truth().host_ns(StepPlan(1, 0, "decode"))
