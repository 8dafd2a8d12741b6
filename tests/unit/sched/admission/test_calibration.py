import pytest

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.sched.admission.calibration import Calibration, CalibrationParams, Ratios


def learned(quantile: float, ratios: list[float]) -> Calibration:
    """One whose quantile stays, after answers that took `ratio` times what was forecast."""
    made = Calibration(CalibrationParams(quantile=quantile, quantile_step=0.0))
    for ratio in ratios:
        made.came("ttft", (1.0, 0.0), made.bound("ttft", 1.0, 0.0), ratio)
    return made


def test_a_forecast_counts_as_it_is_until_enough_answers_came() -> None:  # SPEC A7
    assert learned(0.9, [3.0] * 19).bound("ttft", 2.0, 0.0) == 2.0
    assert learned(0.9, [3.0] * 20).bound("ttft", 2.0, 0.0) == 6.0


def test_the_bound_is_the_quantile_of_what_forecasts_were_off() -> None:  # SPEC A7
    ratios = [1.0 + 0.01 * n for n in range(100)]
    assert learned(0.9, ratios).bound("ttft", 10.0, 0.0) == pytest.approx(19.0)
    assert learned(0.5, ratios).bound("ttft", 10.0, 0.0) == pytest.approx(15.0)


@pytest.mark.parametrize("quantile", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("bias", [0.3, 4.0])
def test_coverage_is_the_quantile_whatever_the_bias_of_the_forecast(quantile: float, bias: float) -> None:  # SPEC A7
    made = learned(quantile, [bias * (0.5 + draw_unit(1, "ratio", 0, n)) for n in range(600)])
    (name, covered), *_ = made.figures("m").coverage
    assert name == "ttft"
    # Over the last 200: three standard deviations of their mean, and the conformal 1 / (n + 1).
    assert covered == pytest.approx(quantile, abs=3 * (quantile * (1 - quantile) / 200) ** 0.5 + 1 / 201)


def test_what_a_forecast_cannot_resolve_is_not_held_against_it() -> None:
    made = Calibration(CalibrationParams(quantile_step=0.0))
    for _ in range(30):
        made.came("ttft", (0.001, 0.02), 0.001, 0.012)  # 12 times the forecast, and within a step
    assert made.bound("ttft", 1.0, 0.02) < 2.0


def test_an_answer_that_never_came_is_news_only_beyond_its_bound() -> None:
    made = learned(0.8, [])
    made.never_came("ttft", (1.0, 0.0), 2.0, 1.5)
    assert made.figures("m").coverage[0] == ("ttft", None)
    made.never_came("ttft", (1.0, 0.0), 2.0, 2.5)
    assert made.figures("m").coverage[0] == ("ttft", 0.0)


def test_the_oldest_ratio_is_forgotten() -> None:
    ratios = Ratios(3)
    for value in (9.0, 1.0, 2.0, 3.0):
        ratios.add(value)
    assert (len(ratios), ratios.at(1.0), ratios.at(0.0)) == (3, 3.0, 1.0)


@pytest.mark.parametrize("target", [0.1, 0.3])
def test_the_quantile_moves_until_refusals_are_false_as_often_as_wanted(target: float) -> None:  # SPEC A7
    """A refusal at quantile q is false with probability q - 0.4 here: the fixed point is 0.4 + target."""
    step = 0.005
    params = CalibrationParams(quantile_step=step, false_reject_target=target, quantile_min=0.0)
    made = Calibration(params)
    for n in range(1000):
        made.shadowed(draw_unit(2, "shadow", 0, n) < made.quantile - 0.4)
    # Three standard deviations: of Robbins-Monro steps around their fixed point, and of a mean of the last 200.
    spread = target * (1 - target)
    assert made.quantile == pytest.approx(0.4 + target, abs=3 * (step * spread / 2) ** 0.5)
    assert made.figures("m").false_rejects == pytest.approx(target, abs=3 * (spread / 200) ** 0.5)
    assert made.figures("m").shadows == 1000


def test_the_quantile_stays_in_its_range() -> None:
    made = Calibration(CalibrationParams())
    for _ in range(100):
        made.shadowed(True)
    assert made.quantile == 0.5
    for _ in range(1000):
        made.shadowed(False)
    assert made.quantile == 0.98


def test_a_start_outside_the_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quantile = 0\.4 must be between"):
        CalibrationParams(quantile=0.4)
