"""A replica's belief about denoise plans."""

import pytest
from msgspec.structs import replace

from headway.core.artifacts import StageTimes
from headway.core.draw import draw_unit
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.reports import DenoiseCoefficients
from headway.core.request import Content, DenoiseShape, DiffusionRequest
from headway.cost.diffusion import decode_ns, encode_ns, step_ns
from headway.cost.diffusion_belief import DenoiseCost, DenoiseCostParams, plan_ns

COST = DenoiseCoefficients(1000.0, 0.0, 10.0, 0.01, text_ns=500.0, decode_ns=0.5)
SMALL, LARGE = DenoiseShape(256, 256), DenoiseShape(1024, 1024)


def plan(shape: DenoiseShape, *rows: DenoiseRow) -> DenoisePlan:
    return DenoisePlan(1, 0, rows, shape.height, shape.width, shape=shape)


def middle(shape: DenoiseShape) -> DenoisePlan:
    return plan(shape, DenoiseRow(1, 3, 2, 9))


def test_rows_are_encoded_when_they_begin_and_decoded_when_they_end() -> None:  # SPEC G1
    step = step_ns(COST, SMALL, 3)
    begins, ends = DenoiseRow(1, 0, 2, 9), DenoiseRow(2, 7, 2, 9, pictures=2)
    assert plan_ns(COST, plan(SMALL, begins, ends)) == encode_ns(COST, SMALL) + 2 * step + decode_ns(COST, SMALL, 2)


def test_a_plan_without_a_shape_has_that_of_its_picture() -> None:
    bare = DenoisePlan(1, 0, (DenoiseRow(1, 3, 2, 9),), 256, 256)
    assert plan_ns(COST, bare) == plan_ns(COST, middle(SMALL))


def test_it_learns_how_far_the_catalogue_is_off() -> None:  # SPEC F2: within 5 %
    belief = DenoiseCost(COST)
    assert belief.error is None
    for place in range(60):
        noise = 1 + 0.03 * (2 * draw_unit(1, "noise", 0, place) - 1)
        belief.observe(middle(SMALL), round(1.25 * noise * plan_ns(COST, middle(SMALL))))
    assert belief.plan_ns(middle(SMALL)) == pytest.approx(1.25 * plan_ns(COST, middle(SMALL)), rel=0.02)
    assert belief.coefficients.token_ns == pytest.approx(12.5, rel=0.02)
    assert belief.coefficients.error is not None
    assert belief.coefficients.error < 0.05


def test_a_shape_that_was_never_seen_leans_on_all_others() -> None:
    belief = DenoiseCost(COST)
    for _ in range(50):
        belief.observe(middle(SMALL), round(1.5 * plan_ns(COST, middle(SMALL))))
    assert belief.factor(LARGE) == pytest.approx(1.5, rel=0.001)
    for _ in range(50):
        belief.observe(middle(LARGE), round(0.9 * plan_ns(COST, middle(LARGE))))
    assert belief.factor(LARGE) == pytest.approx(0.9, rel=0.05)
    assert belief.factor(SMALL) == pytest.approx(1.5, rel=0.05)


def test_it_follows_a_replica_that_changes() -> None:
    belief = DenoiseCost(COST, DenoiseCostParams(memory_plans=20))
    for factor in [1.0] * 40 + [2.0] * 100:
        belief.observe(middle(SMALL), round(factor * plan_ns(COST, middle(SMALL))))
    assert belief.factor(SMALL) == pytest.approx(2.0, rel=0.05)


def test_without_learning_it_only_measures_its_error() -> None:
    belief = DenoiseCost(COST, DenoiseCostParams(learn=False))
    for _ in range(10):
        belief.observe(middle(SMALL), round(1.25 * plan_ns(COST, middle(SMALL))))
    assert belief.factor(SMALL) == 1.0
    assert belief.error == pytest.approx(0.2, rel=0.001)  # 1 / 1.25 - 1


def test_what_a_request_has_left_follows_what_was_learned() -> None:
    belief = DenoiseCost(COST)
    request = DiffusionRequest(RequestId("req-1"), TenantId("t"), ModelId("m"), 4, 256, 256, 1, 0)
    before = belief.left_ns(request)
    for _ in range(500):
        belief.observe(middle(SMALL), round(2 * plan_ns(COST, middle(SMALL))))
    assert belief.left_ns(request) == pytest.approx(2 * before, rel=0.001)
    assert belief.left_ns(request, 3) < belief.left_ns(request, 2)


def test_it_remembers_a_bounded_number_of_shapes() -> None:
    belief = DenoiseCost(COST)
    for side in range(300):
        shape = replace(SMALL, height=16 * (side + 1))
        belief.observe(middle(shape), round(2 * plan_ns(COST, middle(shape))))
    assert len(belief._shapes) == 256


def test_a_rewrite_of_the_weights_comes_before_the_steps() -> None:  # SPEC F2
    merging = replace(COST, merge_ns=7e6)
    changed = replace(middle(SMALL), merges=2)
    assert plan_ns(merging, changed) == 14e6 + plan_ns(merging, middle(SMALL))
    assert not DenoiseCost(COST).merges
    assert DenoiseCost(merging).merges


def test_the_gain_of_batches_is_measured_where_they_have_run() -> None:  # SPEC F4, vllm-omni#3831
    cost = replace(COST, base_ns=1e7)  # believed to be paid once per pass, however many pictures
    alone, four = (plan(SMALL, *(DenoiseRow(seq, 3, 2, 9) for seq in range(rows))) for rows in (1, 4))
    belief = DenoiseCost(cost)
    assert belief.gain(SMALL, 4) > 3
    for _ in range(100):  # in truth four together take four times as long
        belief.observe(alone, round(plan_ns(cost, alone)))
        belief.observe(four, round(4 * plan_ns(cost, alone)))
    assert belief.gain(SMALL, 4) == pytest.approx(1.0, rel=0.15)  # some trust in other sizes is left
    assert belief.plan_ns(four) == pytest.approx(4 * plan_ns(cost, alone), rel=0.05)


def edit(strength: float) -> DiffusionRequest:
    return DiffusionRequest(RequestId("e"), TenantId("t"), ModelId("m"), 10, 256, 256, 1, 0, strength=strength)


def test_steps_that_an_edit_skips_cost_nothing() -> None:  # SPEC F2
    belief, whole, half = DenoiseCost(COST), edit(1.0), edit(0.5)
    step = step_ns(COST, SMALL)
    assert belief.left_ns(whole) - belief.left_ns(half) == pytest.approx(5 * step, abs=2)
    assert belief.left_ns(half, 2) == pytest.approx(5 * step + decode_ns(COST, SMALL), abs=2)
    assert belief.left_ns(half, 7) == pytest.approx(3 * step + decode_ns(COST, SMALL), abs=2)
    parts = [plan(SMALL, DenoiseRow(1, start, 2, 10, skipped=half.skipped_steps)) for start in range(0, 10, 2)]
    assert sum(plan_ns(COST, part) for part in parts) == pytest.approx(belief.left_ns(half), abs=2)


def test_a_plan_of_skipped_steps_teaches_nothing_of_steps() -> None:
    belief = DenoiseCost(COST)
    belief.observe(plan(SMALL, DenoiseRow(1, 0, 2, 10, skipped=5)), 10**9)
    assert belief.factor(SMALL) == 1.0
    assert belief.error is None
    belief.observe(plan(SMALL, DenoiseRow(1, 4, 2, 10, skipped=5)), round(2 * step_ns(COST, SMALL)))
    assert belief.factor(SMALL) == pytest.approx(2.0, rel=2e-4)  # one of its two steps ran, in whole nanoseconds


# SPEC F8
def test_a_cold_plan_teaches_what_first_runs_take_and_nothing_of_the_work() -> None:
    belief, first = DenoiseCost(COST), replace(plan(SMALL, DenoiseRow(1, 0, 2, 9)), is_cold=True)
    work_ns = belief.plan_ns(first)
    belief.observe(first, work_ns + 700, StageTimes(save_ns=10**6, resume_ns=10**6))
    assert belief.first_runs.more_ns == 0  # what was saved and resumed is neither
    belief.observe(first, work_ns + 900)
    belief.observe(replace(middle(SMALL), is_cold=True), 10**9)  # only its decode may be new
    assert (belief.first_runs.more_ns, belief.coefficients.first_ns) == (450, 450)
    assert (belief.factor(SMALL), belief.error, belief.interruption.error) == (1.0, None, None)


# SPEC F1, F8: else an edit teaches that first runs take nothing.
def test_the_first_run_of_an_edit_is_its_first_step_that_is_computed() -> None:
    belief = DenoiseCost(COST)
    for start, more_ns in ((0, 0), (1, 0), (2, 800), (3, 10**9)):
        cold = replace(plan(SMALL, DenoiseRow(1, start, 1, 9, skipped=2)), is_cold=True)
        belief.observe(cold, belief.plan_ns(cold) + more_ns)
    assert belief.first_runs.more_ns == 800


def test_one_plan_outweighs_what_was_believed_before_anything_ran() -> None:  # a crowded warm-up, a wrong catalogue
    belief = DenoiseCost(COST)
    first = middle(SMALL)
    belief.observe(first, round(0.5 * plan_ns(COST, first)))
    assert belief.plan_ns(first) == pytest.approx(0.5 * plan_ns(COST, first), rel=1e-3)  # in whole nanoseconds
    assert belief.error == pytest.approx(1.0, rel=1e-3)  # it was believed to take twice as long, and says so


def test_prompts_that_begin_together_are_encoded_in_one_call() -> None:
    # SPEC F4, seed 003 3: "text encoders and fixed overhead are what a batch of few steps saves"
    cost, row = replace(COST, text_shared_ns=400.0), DenoiseRow(1, 0, 2, 9)
    together = plan(SMALL, row, replace(row, seq=2), replace(row, seq=3))
    assert plan_ns(cost, together) == plan_ns(COST, together) - 2 * 400
    assert plan_ns(cost, plan(SMALL, row)) == plan_ns(COST, plan(SMALL, row))


def test_pictures_to_begin_from_are_in_the_time_of_the_plan_that_begins_them() -> None:  # SPEC F1, F2
    cost = replace(COST, begin_ns=3.0)
    request = DiffusionRequest(RequestId("req-1"), TenantId("t"), ModelId("m"), 9, 256, 256, 1, 0)
    edit = replace(request, content=Content("x", pictures=(b"png",)))
    begins = plan(SMALL, DenoiseRow(1, 0, 2, 9), DenoiseRow(2, 0, 2, 9))
    news = tuple(NewDenoise(seq, one) for seq, one in enumerate((edit, request), start=1))
    assert plan_ns(cost, replace(begins, new=news)) - plan_ns(cost, begins) == 3.0 * 256 * 256
    resumed = (NewDenoise(1, replace(edit, begun=3)),)  # its checkpoint holds what was encoded
    assert plan_ns(cost, replace(middle(SMALL), new=resumed)) == plan_ns(cost, middle(SMALL))
