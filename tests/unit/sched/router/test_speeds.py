from random import Random

import pytest

from headway.core.units import ns_from_s
from headway.sched.router.speeds import Line, Speed


def test_a_line_is_found_under_noise() -> None:
    line, rng = Line(), Random(1)
    for _ in range(200):
        x = rng.uniform(100, 5000)
        line.add(x, 0.05 + x / 4000 + rng.uniform(-0.01, 0.01))
    assert line.slope == pytest.approx(1 / 4000, rel=0.05)
    assert line.floor == pytest.approx(0.05, abs=0.01)


def test_equal_samples_are_taken_through_the_origin() -> None:
    line = Line()
    for _ in range(5):
        line.add(1000.0, 0.5)
    assert (line.slope, line.floor) == (pytest.approx(0.0005), 0.0)


def test_more_work_never_looks_faster() -> None:
    line = Line()
    for x, y in ((100.0, 3.0), (1000.0, 2.0), (5000.0, 1.0)):
        line.add(x, y)
    assert line.slope == 0.0
    assert line.floor > 0.0


def test_a_line_follows_a_replica_that_became_slower() -> None:
    line = Line()
    for scale in (1.0, 3.0):
        for place in range(100):
            x = 100.0 + 50.0 * (place % 20)
            line.add(x, scale * x / 1000)
    assert line.slope == pytest.approx(0.003, rel=0.1)


def test_few_samples_say_nothing_and_short_prompts_never_do() -> None:
    speed = Speed()
    for _ in range(2):
        speed.began(1000, ns_from_s(0.5))
    for _ in range(9):
        speed.began(10, ns_from_s(0.5))
    assert speed.prefill_tokens_per_s == 0.0
    speed.began(1000, ns_from_s(0.5))
    assert speed.prefill_tokens_per_s == pytest.approx(2000.0)


def test_a_step_costs_what_tokens_took_beside_others() -> None:
    speed = Speed()
    for beside in (1, 2, 4, 8) * 5:
        speed.ended(11, beside, ns_from_s(10 * (0.02 + 0.0002 * beside)))
    speed.ended(1, 500, ns_from_s(9))  # one token has no time per token
    assert speed.step_cost is not None
    assert speed.step_cost.base_ns == pytest.approx(20e6)
    assert speed.step_cost.row_ns == pytest.approx(0.2e6)


def test_prefill_between_steps_does_not_make_rows_look_dear() -> None:
    # Requests pile up behind a long prompt, whose chunks their steps carry: 4 ms per row by the samples, which would
    # count for more than whole queues when a router weighs the delay to others.
    speed = Speed()
    for beside in (2, 5, 10, 20) * 5:
        speed.ended(11, beside, ns_from_s(10 * (0.005 + 0.004 * beside)))
    assert speed.step_cost is not None
    assert speed.step_cost.row_ns == pytest.approx(0.02 * speed.step_cost.base_ns)
    mean = speed.step_cost.base_ns + 9.25 * speed.step_cost.row_ns
    assert mean == pytest.approx(42e6, rel=0.1)  # still what the steps took on average


def test_a_prefill_rate_is_hardly_above_what_was_seen() -> None:
    speed = Speed()
    for ahead, took_s in ((5_000, 1.0), (20_000, 1.3), (80_000, 2.9)) * 4:  # 33,000 tokens/s by their slope
        speed.began(ahead, ns_from_s(took_s))
    assert speed.prefill_tokens_per_s < 1.15 * 105_000 / 5.2
