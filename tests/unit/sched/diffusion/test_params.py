"""Settings that are refused at load."""

import pytest
from tests.unit.sched.diffusion.pictures import COST

from headway.core.errors import ConfigError
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.params import DiffusionParams, ShapeCap, check, order_policy
from headway.sched.registry import PolicyChoice


def test_a_pool_that_takes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="pixels_min = 200 is above pixels_max = 100"):
        check(DiffusionParams(pixels_min=200, pixels_max=100), None)


def test_a_cap_only_lowers_the_common_one() -> None:  # SPEC F4
    with pytest.raises(ConfigError, match=r"batch_max = 8 of 64x64 is above batch_max = 4"):
        check(DiffusionParams(batch_max=4, caps=(ShapeCap(64, 64, 8),)), None)


def test_a_budget_in_seconds_needs_a_belief() -> None:
    with pytest.raises(ConfigError, match="batch_s_max needs a belief"):
        check(DiffusionParams(batch_s_max=2.0), None)
    check(DiffusionParams(batch_s_max=2.0), DenoiseCost(COST))


def test_an_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"order.type is 'sfj'; did you mean 'sjf'\? known are drr, fair, fifo"):
        order_policy(DiffusionParams(order=PolicyChoice("sfj")), None)
