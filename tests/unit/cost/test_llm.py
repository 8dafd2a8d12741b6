"""The belief about step times."""

from random import Random

import pytest

from headway.core.reports import StepCoefficients
from headway.cost.llm import StepCost, StepCostParams, StepShape, pairs, roofline


def test_pairs_count_every_query_against_all_keys_before_it() -> None:
    assert pairs(3, 4) == sum(3 + i for i in range(1, 5))


def test_a_linear_step_adds_its_parts() -> None:
    cost = StepCost(StepCostParams(base_ns=100, row_ns=10, kv_ns=2, token_ns=5, pair_ns=1))
    assert cost.step_ns(3, 20, 4, 7) == 100 + 30 + 40 + 20 + 7


def test_its_coefficients_are_what_a_report_tells() -> None:
    told = StepCost(StepCostParams(base_ns=100, row_ns=10, kv_ns=2, token_ns=5, pair_ns=1)).coefficients
    assert told == StepCoefficients(100, 10, 2, 5, 1)
    assert StepCost(StepCostParams(mode="roofline")).coefficients.is_roofline


def test_a_roofline_step_takes_the_larger_of_memory_and_compute() -> None:
    cost = StepCost(roofline(weight_bytes=1e9, parameters=5e8, kv_bytes_per_token=1e4, flops=1e13, bytes_per_s=1e11))
    assert cost.step_ns(1, 0) == pytest.approx(1e7, rel=1e-9)
    assert cost.step_ns(0, 0, 1000) == pytest.approx(1e8, rel=1e-9)


def test_it_learns_the_coefficients_of_a_device_it_was_wrong_about() -> None:
    truth = StepCost(StepCostParams(base_ns=9e6, row_ns=2e5, kv_ns=80, token_ns=4e4, pair_ns=25))
    belief, rng = StepCost(StepCostParams()), Random(1)
    for _ in range(300):
        chunk, start = rng.choice([0, 128, 512]), rng.randint(0, 4000)
        shape = StepShape(rng.randint(0, 64), rng.randint(0, 60_000), chunk, pairs(start, chunk))
        took = truth.step_ns(shape.decodes, shape.kv_tokens, shape.prefill_tokens, shape.prefill_pairs)
        belief.observe(shape, took)
    for shape in (StepShape(8, 4000), StepShape(64, 64_000), StepShape(16, 16_000, 256, pairs(1000, 256))):
        args = (shape.decodes, shape.kv_tokens, shape.prefill_tokens, shape.prefill_pairs)
        assert belief.step_ns(*args) == pytest.approx(truth.step_ns(*args), rel=0.02)


def test_prompts_that_compute_longer_than_weights_are_read_say_nothing_of_an_empty_batch() -> None:
    # A replica whose first steps were prompts told a base of a tenth, and a router sent it everything
    params = roofline(weight_bytes=1e9, parameters=5e8, kv_bytes_per_token=1e4, flops=1e13, bytes_per_s=1e11)
    belief = StepCost(params)
    for tokens in (500, 1200, 300):
        belief.observe(StepShape(1, 700, tokens, pairs(0, tokens)), round(0.7 * params.token_ns * tokens))
    assert belief.coefficients.base_ns == params.base_ns
    assert belief.coefficients.token_ns == pytest.approx(0.7 * params.token_ns, rel=0.02)
    belief.observe(StepShape(1, 700), round(1.5 * params.base_ns))
    assert belief.coefficients.base_ns == pytest.approx(1.5 * params.base_ns, rel=0.02)


@pytest.mark.parametrize("off", [0.3, 3.0])
def test_a_roofline_is_learned_whichever_part_the_prior_takes_to_be_the_larger(off: float) -> None:
    known = {"row_ns": 2e5, "token_ns": 1e5, "pair_ns": 0.0}
    truth = StepCost(StepCostParams(base_ns=2e7, kv_ns=200, mode="roofline", **known))
    belief = StepCost(StepCostParams(base_ns=2e7 * off, kv_ns=200 * off, mode="roofline", **known))
    rng = Random(3)
    for _ in range(300):
        decodes, kv, tokens = rng.randint(1, 32), rng.randint(100, 40_000), rng.choice([0, 0, 64, 512])
        belief.observe(StepShape(decodes, kv, tokens, pairs(0, tokens)), truth.step_ns(decodes, kv, tokens))
    for decodes, kv, tokens in ((8, 4000, 0), (32, 30_000, 0), (8, 4000, 512)):
        assert belief.step_ns(decodes, kv, tokens) == pytest.approx(truth.step_ns(decodes, kv, tokens), rel=0.02)


def test_more_work_never_looks_cheaper_whatever_was_observed() -> None:
    belief, rng = StepCost(StepCostParams()), Random(2)
    for _ in range(200):
        shape = StepShape(rng.randint(0, 9), rng.randint(0, 900), rng.randint(0, 99), rng.randint(0, 999))
        belief.observe(shape, rng.randint(1, 10**9))
    assert belief.step_ns(2, 100, 10, 10) <= belief.step_ns(3, 101, 11, 11)


def test_steady_steps_alone_do_not_unlearn_what_prefill_costs() -> None:
    belief = StepCost(StepCostParams())
    before = belief.prefill_ns(0, 1000)
    for _ in range(5000):
        belief.observe(StepShape(8, 8000), belief.step_ns(8, 8000))
    belief.observe(StepShape(8, 8000, 100, pairs(0, 100)), belief.step_ns(8, 8000, 100, pairs(0, 100)))
    assert belief.prefill_ns(0, 1000) == pytest.approx(before, rel=0.02)


def test_learning_can_be_turned_off() -> None:
    belief = StepCost(StepCostParams(learn=False))
    before = belief.step_ns(4, 100)
    belief.observe(StepShape(4, 100), 10**9)
    assert belief.step_ns(4, 100) == before


@pytest.mark.parametrize("room", [0, 1, 7, 500])
def test_the_largest_chunk_is_exactly_the_last_that_keeps_the_limit(room: int) -> None:
    belief = StepCost(StepCostParams(base_ns=1000, row_ns=10, kv_ns=1, token_ns=7, pair_ns=0.5))
    base = StepShape(3, 40, 5, 12)
    size = belief.largest_chunk(base, 100, 9000, room)
    fits = [n for n in range(room + 1) if belief.step_ns(3, 40, 5 + n, 12 + pairs(100, n)) <= 9000]
    assert size == max(fits)


def test_swap_costs_a_copy_out_and_back() -> None:
    belief = StepCost(StepCostParams(kv_bytes_per_block=1000, swap_bytes_per_s=1e6))
    assert belief.swap_ns(3) == 6_000_000
