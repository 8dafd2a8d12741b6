"""Step times fitted to measured steps."""

from random import Random

import pytest

from headway.core.errors import ConfigError
from headway.cost.fitted import Coefficients
from headway.cost.fitting import Sample, fit_steps
from headway.cost.llm import StepShape, pairs

TRUTH = Coefficients(base_ns=8e6, row_ns=9e4, kv_ns=45, token_ns=3e4, pair_ns=12)


def shapes(count: int, rng: Random) -> list[StepShape]:
    found = []
    for _ in range(count):
        chunk, start = rng.choice([0, 0, 64, 512]), rng.randint(0, 4000)
        rows = rng.randint(0 if chunk else 1, 64)
        found.append(StepShape(rows, rows * rng.randint(10, 900), chunk, pairs(start, chunk), int(chunk > 0)))
    return found


def samples(noise: float = 0.0, count: int = 400) -> list[Sample]:
    rng = Random(3)
    return [
        Sample(shape, round(TRUTH.step_ns(shape) * (1 + noise * rng.gauss(0, 1))), 100_000 + 2_000 * shape.decodes)
        for shape in shapes(count, rng)
    ]


def test_a_fit_finds_what_steps_are_made_of() -> None:  # SPEC J3
    found = fit_steps(samples()).coefficients
    for name in ("base_ns", "row_ns", "kv_ns", "token_ns", "pair_ns"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=1e-3), name


def test_noise_does_not_pull_the_fit_down() -> None:
    # Ten percent of noise over 400 steps leaves 0.5 % of doubt in their mean; weighing by the measured would lose 1 %.
    fit = fit_steps(samples(noise=0.1))
    truth = sum(TRUTH.step_ns(shape) for shape in shapes(200, Random(99)))
    found = sum(fit.coefficients.step_ns(shape) for shape in shapes(200, Random(99)))
    assert found == pytest.approx(truth, rel=0.008)


def test_the_held_out_error_is_the_noise_that_is_there() -> None:
    error = fit_steps(samples(noise=0.1)).held_out["step"]
    assert error.samples == 192 or error.samples == 200
    assert 0.05 < error.mae < 0.11  # the mean absolute value of a gaussian is 0.8 of its deviation
    assert abs(error.mean) < 0.02


def test_a_step_that_stood_still_is_left_out_and_counted() -> None:
    measured = samples()
    measured[7] = Sample(measured[7].shape, 60_000_000_000)
    fit = fit_steps(measured)
    assert fit.dropped == 1
    assert fit.coefficients.base_ns == pytest.approx(TRUTH.base_ns, rel=1e-3)
    assert "1 steps" in fit.notes[0]


def test_host_time_is_fitted_where_it_was_exposed() -> None:
    measured = [one if place % 2 else Sample(one.shape, one.step_ns) for place, one in enumerate(samples())]
    found = fit_steps(measured).coefficients
    assert (found.host_base_ns, found.host_row_ns) == (pytest.approx(1e5, rel=0.05), pytest.approx(2e3, rel=0.05))


def test_what_a_log_cannot_tell_is_said() -> None:
    fit = fit_steps([Sample(StepShape(n % 9 + 1, 100 * (n % 9 + 1) + n), 1_000_000 + n) for n in range(60)])
    assert any("token_ns is not identified" in note for note in fit.notes)
    assert fit.ranges.prefill_tokens == 0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 steps"):
        fit_steps(samples()[:5])
