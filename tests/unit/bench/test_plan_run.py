import msgspec
import pytest
from tests.unit.bench.plans import linear

from headway.bench.intervals import interval, spread_of
from headway.bench.plan_run import Run, run
from headway.bench.sweep import Result
from headway.sim.scenario import Scenario


def result_of(scenario: Scenario, misses_max: int | None) -> Result:
    found = run(Run({}, msgspec.structs.replace(scenario, plan=None), misses_max))
    assert isinstance(found, Result)
    return found


@pytest.mark.parametrize("rate", [15.0, 25.0, 60.0])
def test_an_early_end_says_exactly_what_the_whole_run_would_say(rate: float) -> None:
    scenario = linear(rate)
    whole = result_of(scenario, None).summary
    assert whole is not None
    missed = round((1 - whole.attainment) * whole.sent)
    for limit in (0, missed - 1, missed, missed + 1):
        if limit < 0:
            continue
        ended = result_of(scenario, limit).summary
        assert ended is not None
        # It goes to its end, or it is cut and the limit was passed; never cut below the limit.
        assert ended.complete or missed > limit
        if missed <= limit:
            assert ended.complete
            assert ended.attainment == whole.attainment


def test_an_overload_ends_early() -> None:
    scenario = linear(400.0, count=2000)
    ended = result_of(scenario, 50).summary
    assert ended is not None
    assert not ended.complete
    assert ended.completed < 1500


def test_a_run_that_may_end_early_is_stored_apart() -> None:
    scenario = msgspec.structs.replace(linear(), plan=None)
    keys = {Run({}, scenario, limit).key for limit in (None, 1, 2)}
    assert len(keys) == 3


def test_the_interval_is_students() -> None:
    low, high = interval([0.90, 0.92, 0.94])
    # t(2) = 4.303, deviation 0.02, over the root of 3
    assert high - low == pytest.approx(2 * 4.303 * 0.02 / 3**0.5)
    assert interval([1.0, 1.0, 1.0]) == (1.0, 1.0)
    assert interval([0.5, 1.0])[1] == 1.0
    assert interval([0.5]) == (0.0, 1.0)
    assert spread_of([-3.0, 5.0]) == (1.0, pytest.approx(12.706 * 4 * 2**0.5 / 2**0.5))
    with pytest.raises(ValueError, match="1 values have no spread"):
        spread_of([1.0])
