import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.sim.plan_params import PlanParams, parse_split


def test_a_split_is_prefill_to_decode_replicas() -> None:
    assert parse_split("2:1") == (2, 1)


@pytest.mark.parametrize("text", ["2", "2:", ":1", "0:1", "a:b", "-1:2"])
def test_a_split_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"plan\.splits"):
        PlanParams(modes=("pd",), splits=(text,))


def test_mixing_needs_a_price_to_lower_and_two_types() -> None:
    with pytest.raises(ConfigError, match=r"plan\.mix"):
        PlanParams(mix=True, devices=("A10", "L4"))
    with pytest.raises(ConfigError, match=r"plan\.mix"):
        PlanParams(mix=True, objective="cost", devices=("A10",))


def test_splits_of_no_mode_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"plan\.modes"):
        PlanParams(modes=("mixed",), splits=("1:1",))


def test_a_seed_is_named_once() -> None:
    with pytest.raises(ConfigError, match=r"plan\.seeds"):
        PlanParams(seeds=(1, 1, 2))


@pytest.mark.parametrize("key", [{"attainment": 1.0}, {"devices_max": 0}, {"seeds": [1]}, {"tp": []}, {"nodes": 3}])
def test_bounds_hold(key: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(key, PlanParams)
