"""Published step times. REFERENCE 4, and field/simulators.md 4, rows 23 and 24."""

import pytest

from headway.core.errors import ConfigError
from headway.cost.llm import StepShape, pairs
from headway.cost.published import PUBLISHED, find_published


def prompts(count: int, tokens: int) -> StepShape:
    return StepShape(0, 0, count * tokens, count * pairs(0, tokens), count, count * tokens)


@pytest.mark.parametrize(
    ("tp", "base", "token", "square"), [(1, 18.10, 0.10191, 7.12e-6), (2, 14.74, 0.06858, 2.45e-6)]
)
def test_distserve_prefill_is_its_closed_form(tp: int, base: float, token: float, square: float) -> None:
    """t = base + token * sum n + square * sum n^2, in ms; two prompts of 700 tokens."""
    found = find_published(f"distserve-opt-13b-a100-tp{tp}").step_ns(prompts(2, 700)) / 1e6
    assert found == pytest.approx(base + token * 1400 + square * 2 * 700**2, rel=1e-3)


def test_distserve_decode_changes_its_form_at_95() -> None:
    model = find_published("distserve-opt-13b-a100-tp1")
    assert model.step_ns(StepShape(94, 94_000)) / 1e6 == pytest.approx(
        19.93 + 0.00063 * 94_000 + 0.03851 * 94, rel=0.01
    )
    assert model.step_ns(StepShape(95, 95_000)) / 1e6 == pytest.approx(7.17 + 0.00058 * 95_000 + 0.15831 * 95, rel=0.01)


# Prompt 512, 128 tokens out: batch, prefill ms, decode ms. Tolerance: the worst error of the fit.
@pytest.mark.parametrize(
    ("name", "batch", "prefill_ms", "decode_ms"),
    [
        ("h100", 1, 56.7, 29.7),
        ("h100", 16, 805, 34.2),
        ("a100", 1, 95.7, 44.9),
        ("a100", 16, 2064, 50.4),
    ],
)
def test_splitwise_medians_within_the_error_of_the_fit(
    name: str, batch: int, prefill_ms: float, decode_ms: float
) -> None:
    model = find_published(f"splitwise-llama-2-70b-{name}-tp8")
    assert model.step_ns(StepShape(batch, batch * 576)) / 1e6 == pytest.approx(decode_ms, rel=0.07)
    assert model.step_ns(prompts(batch, 512)) / 1e6 == pytest.approx(prefill_ms, rel=0.42)


# vidur#60, inference-sim#962: a model of one kind of step must not answer for another.
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_mixed_step_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="apart"):
        find_published(name).step_ns(StepShape(3, 300, 64, pairs(0, 64), 1, 64))


def test_a_name_that_nobody_published_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="distserve-opt-13b-a100-tp1"):
        find_published("distserve-opt-13b-a100-tp8x")
