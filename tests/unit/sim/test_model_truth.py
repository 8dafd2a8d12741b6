import pytest

from headway.core.errors import InvariantError
from headway.core.ids import NodeId
from headway.core.plans import Chunk, DenoisePlan, StepPlan
from headway.cost.llm import StepShape
from headway.sim.linear import LinearParams, LinearStep
from headway.sim.model_truth import ModelTruth, noise
from headway.sim.pools import TruthParams

MODEL = LinearStep(LinearParams(step_us=1000, token_us=10, kv_ns=2, host_us=100, host_row_us=1))
EXACT = TruthParams(scale=1.0, jitter=0.0, spread=0.0)
REPLICA = NodeId("rep-pool-0")


def plan(step: int = 1, bucket: int = 0) -> StepPlan:
    chunks = (Chunk(9, 0, 100, samples=True),)
    return StepPlan(step, step - 1, "mixed", chunks=chunks, decodes=4, kv_tokens=400, prefill_tokens=100, bucket=bucket)


def test_without_perturbation_it_is_the_model() -> None:
    truth = ModelTruth(MODEL, EXACT, 0, REPLICA)
    assert truth.step_ns(plan()) == round(MODEL.step_ns(StepShape(4, 400, 100, 5050, chunks=1, chunk_context=100)))
    assert truth.host_ns(plan()) == 105_000


def test_a_padded_step_pays_for_its_bucket() -> None:
    truth = ModelTruth(MODEL, EXACT, 0, REPLICA)
    assert truth.step_ns(plan(bucket=128)) - truth.step_ns(plan()) == 24 * 10_000


def test_every_step_scatters_about_the_scale() -> None:
    exact = ModelTruth(MODEL, EXACT, 0, REPLICA).step_ns(plan())
    truth = ModelTruth(MODEL, TruthParams(scale=1.2, jitter=0.1, spread=0.0), 0, REPLICA)
    ratios = [truth.step_ns(plan(step)) / exact for step in range(1, 401)]
    assert sum(ratios) / 400 == pytest.approx(1.2, rel=0.01)
    assert min(ratios) >= 1.2 * 0.9
    assert max(ratios) <= 1.2 * 1.1
    assert len(set(ratios)) > 390


def test_replicas_differ_and_the_seed_says_how() -> None:
    params = TruthParams(scale=1.0, jitter=0.0, spread=0.2)
    times = [ModelTruth(MODEL, params, seed, NodeId(f"rep-{n}")).step_ns(plan()) for seed in (0, 1) for n in range(4)]
    assert len(set(times)) == 8
    assert ModelTruth(MODEL, params, 0, NodeId("rep-0")).step_ns(plan()) == times[0]


def test_a_straggler_is_slower_from_now_on() -> None:
    truth = ModelTruth(MODEL, EXACT, 0, REPLICA)
    before = truth.step_ns(plan())
    truth.slowdown = 3.0
    assert truth.step_ns(plan()) == 3 * before


def test_an_llm_replica_denoises_nothing() -> None:
    with pytest.raises(InvariantError, match="no denoise plan"):
        ModelTruth(MODEL, EXACT, 0, REPLICA).denoise_ns(DenoisePlan(1, 0, (), 64, 64))


def test_noise_is_uniform_in_its_range() -> None:
    values = sorted(noise(5, step) for step in range(2000))
    assert values[0] >= -1
    assert values[-1] < 1
    assert max(abs(value - (2 * (place + 0.5) / 2000 - 1)) for place, value in enumerate(values)) < 0.06  # KS, 1e-6
