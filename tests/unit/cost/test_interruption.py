"""What checkpoints take, as it is measured."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.artifacts import StageTimes
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.reports import WarmShape
from headway.core.request import DenoiseShape
from headway.cost.diffusion import step_ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.interruption import InterruptionPrice

SMALL = DenoiseShape(64, 64)
ROW = DenoiseRow(1, 2, 1, 9)
SAVES = DenoisePlan(1, 0, (ROW, replace(ROW, seq=2)), 64, 64, shape=SMALL, save=(1, 2))
RESUMES = DenoisePlan(2, 1, (ROW,), 64, 64, shape=SMALL, new=(NewDenoise(1, picture("a", steps=9, begun=2)),))


def learned(*seen: tuple[DenoisePlan, StageTimes]) -> InterruptionPrice:
    price = InterruptionPrice(100)
    for plan, stages in seen:
        price.observe(plan, stages)
    return price


# SPEC F6
def test_the_price_of_a_row_is_its_save_and_its_resume() -> None:
    price = learned((SAVES, StageTimes(save_ns=2000)), (RESUMES, StageTimes(resume_ns=500)))
    assert price.of(SMALL, 1) == 1500
    assert price.of(SMALL, 1, is_saved=True) == 500
    assert price.of(SMALL, 2) is price.of(DenoiseShape(128, 64), 1) is None


def test_one_part_alone_is_no_price() -> None:
    assert learned((SAVES, StageTimes(save_ns=2000))).of(SMALL, 1) is None
    assert learned((RESUMES, StageTimes(resume_ns=500))).of(SMALL, 1) is None


def test_an_engine_that_does_not_tell_teaches_nothing() -> None:
    price = learned((SAVES, StageTimes()), (RESUMES, StageTimes()))
    assert (price.of(SMALL, 1), price.error, price.save.mean_ns) == (None, None, 0.0)


def test_its_error_is_that_of_what_was_predicted_before() -> None:
    price = learned((SAVES, StageTimes(save_ns=2000)))
    assert price.error is None
    price.observe(SAVES, StageTimes(save_ns=4000))  # 1000 were predicted of each, 2000 it was
    assert price.error == pytest.approx(0.5)
    assert price.save.of(SMALL, 1) == 1500


# SPEC F2, F6
def test_what_checkpoints_take_is_told_and_is_no_step() -> None:
    belief = DenoiseCost(COST)
    step = step_ns(COST, SMALL)
    belief.observe(RESUMES, round(step) + 10**9, StageTimes(resume_ns=10**9))
    assert belief.plan_ns(RESUMES) == pytest.approx(step, rel=1e-4)
    assert belief.coefficients.resume_ns == 10**9
    assert (belief.coefficients.save_ns, belief.coefficients.interruption_error) == (0.0, None)


def test_what_the_warm_up_measured_is_the_first_measure() -> None:
    price = InterruptionPrice(100)
    price.begin((WarmShape(64, 64, 1, 4, 300, 200), WarmShape(128, 64, 1, 4)))
    assert price.of(replace(SMALL, passes=2), 1) == 500  # whatever its guidance
    assert price.of(DenoiseShape(128, 64), 1) is None
    price.observe(SAVES, StageTimes(save_ns=1200))  # 600 each
    assert price.error == pytest.approx(0.5)
