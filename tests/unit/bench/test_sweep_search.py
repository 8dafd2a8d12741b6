from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.metrics import condition
from headway.bench.results import Tally
from headway.bench.run_summary import Closing
from headway.bench.scenarios import read_scenario
from headway.bench.sweep import Cell, Result, Store, Sweep
from headway.bench.sweep_search import Found, Search, find
from headway.core.errors import ConfigError
from headway.sim.scenario import Scenario

RATE = "workload.arrivals.rate_per_s"
SUMMARY = Tally().summary(Closing(1.0))


BASE = read_scenario(None, {})


def make(changes: Mapping[str, object]) -> Scenario:
    """Build as a file's scenario is built, but quickly: the search is tried with hundreds."""
    workload, pool = BASE.workload[0], BASE.pools[0]
    arrivals = msgspec.structs.replace(workload.arrivals, rate_per_s=changes.get(RATE, workload.arrivals.rate_per_s))
    return msgspec.structs.replace(
        BASE,
        seed=changes["seed"],
        workload=(msgspec.structs.replace(workload, arrivals=arrivals),),
        pools=(msgspec.structs.replace(pool, replicas=changes.get("pools.replicas", pool.replicas)),),
    )


class Ideal:
    """Runs that attain everything up to `limit` per replica, and nothing beyond."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.runs = 0

    def __call__(self, cell: Cell) -> Result:
        self.runs += 1
        scenario = cell.scenario
        rate = scenario.workload[0].arrivals.rate_per_s
        met = 1.0 if rate <= self.limit * scenario.pools[0].replicas else 0.5
        return Result(cell.key, cell.changes, msgspec.structs.replace(SUMMARY, attainment=met))


def search(direction: str, low: float, high: float, **more: object) -> Search:
    key = RATE if direction == "max" else "pools.replicas"
    asked = {"key": key, "direction": direction, "hold": condition("attainment>=0.9"), "low": low, "high": high, **more}
    return Search(**asked)


def found(ideal: Ideal, asked: Search, changes: Mapping[str, object] | None = None, width: int = 1) -> Found:
    (one,) = find(Sweep(Store(None), 1, run=ideal), asked, [changes or {}], [0, 1], make, width)
    return one


@settings(max_examples=12, deadline=None)
@given(st.floats(1.1, 90.0), st.integers(1, 4))
def test_the_largest_rate_is_found_within_the_tolerance(limit: float, width: int) -> None:
    one = found(Ideal(limit), search("max", 1.0, 100.0, tolerance=0.05), {"pools.replicas": 1}, width)
    assert one.value is not None
    assert one.value <= limit <= one.value * 1.0501
    assert not one.is_at_bound
    assert len(one.results) == 2


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 64), st.integers(1, 4))
def test_the_smallest_whole_number_is_found_exactly(needed: int, width: int) -> None:
    asked = search("min", 1, 64, is_whole=True)
    one = found(Ideal(5.0), asked, {RATE: 5.0 * needed}, width)
    assert one.value == needed
    assert isinstance(one.value, int)
    assert one.is_at_bound == (needed == 1)


def test_what_holds_nowhere_has_no_value() -> None:
    one = found(Ideal(0.5), search("max", 1.0, 100.0), {"pools.replicas": 1})
    assert (one.value, one.results) == (None, [])


def test_what_holds_everywhere_is_told_to_be_at_the_bound() -> None:
    one = found(Ideal(1000.0), search("max", 1.0, 100.0), {"pools.replicas": 1})
    assert (one.value, one.is_at_bound, one.tried) == (100.0, True, 2)


def test_every_combination_has_its_own_limit() -> None:
    combinations = [{"pools.replicas": count} for count in (1, 2, 4)]
    several = find(Sweep(Store(None), 1, run=Ideal(5.0)), search("max", 1.0, 100.0), combinations, [0], make)
    assert [round(one.value or 0) for one in several] == [5, 10, 20]


def test_more_points_at_once_need_fewer_rounds() -> None:
    # A quarter of the span is left after one round of three, after two of one
    rounds: list[int] = []

    class Counting(Sweep):
        def evaluate(self, cells):  # type: ignore[no-untyped-def]  # counts calls
            rounds[-1] += 1
            return super().evaluate(cells)

    for width in (1, 3):
        rounds.append(0)
        find(
            Counting(Store(None), 1, run=Ideal(7.0)),
            search("max", 1.0, 64.0),
            [{"pools.replicas": 1}],
            [0],
            make,
            width,
        )
    assert rounds[1] < rounds[0] / 1.7


def test_a_run_that_cannot_be_is_no_proof_that_the_condition_holds() -> None:
    def refused(cell: Cell) -> Result:
        return Result(cell.key, cell.changes, None, "does not fit")

    (one,) = find(Sweep(Store(None), 1, run=refused), search("max", 1.0, 4.0), [{}], [0], make)
    assert one.value is None


def test_the_condition_is_judged_on_the_mean_of_the_seeds() -> None:
    def uneven(cell: Cell) -> Result:
        met = 0.82 if cell.changes["seed"] == 0 else 1.0  # mean 0.91
        return Result(cell.key, cell.changes, msgspec.structs.replace(SUMMARY, attainment=met))

    (one,) = find(Sweep(Store(None), 1, run=uneven), search("max", 1.0, 4.0), [{}], [0, 1], make)
    assert one.value == 4.0


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_bounds_that_enclose_nothing_are_refused(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="--between"):
        search("max", low, high)
