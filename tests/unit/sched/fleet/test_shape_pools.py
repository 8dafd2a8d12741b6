from msgspec.structs import replace

from headway.core.ids import NodeId
from headway.core.units import NS_PER_S
from headway.sched.fleet.shape_pools import (
    ShapeLoad,
    ShapePoolParams,
    Shift,
    Standing,
    choose_shift,
    pools_of,
)

SMALL, LARGE = (0, 1000), (1001, None)
PARAMS = ShapePoolParams(margin=0.25, hold_s=2.0)
COLD_NS = 20 * NS_PER_S


def load(name: str, pixels: tuple[int, int | None], work_s: float, model: str = "m") -> ShapeLoad:
    return ShapeLoad(NodeId(name), model, pixels, round(work_s * NS_PER_S))


def shift(*loads: ShapeLoad, params: ShapePoolParams = PARAMS) -> Shift | None:
    return choose_shift(pools_of(loads)["m"], "m", COLD_NS, params)


IDLE = (load("a", SMALL, 0), load("b", SMALL, 0))


def test_a_replica_goes_to_the_pool_where_waits_are_longer_by_more_than_the_cold_start() -> None:  # SPEC F5
    found = shift(*IDLE, load("c", LARGE, 26))
    assert found is not None
    assert (found.replica, found.pixels) == ("a", LARGE)
    assert shift(*IDLE, load("c", LARGE, 25)) is None  # 20 s and a quarter


def test_the_least_busy_of_the_pool_with_the_shortest_wait_goes() -> None:
    third = (2000, 3000)
    found = shift(
        load("a", SMALL, 3), load("b", SMALL, 1), load("d", third, 9), load("e", third, 9), load("c", LARGE, 60)
    )
    assert found is not None
    assert found.replica == "b"


def test_a_pool_keeps_the_replica_that_its_requests_need() -> None:
    assert shift(load("a", SMALL, 0), load("c", LARGE, 500)) is None
    assert shift(*IDLE, load("c", LARGE, 500), params=replace(PARAMS, replicas_min=2)) is None


def test_no_move_makes_the_pool_that_gives_wait_as_long_itself() -> None:
    # "b" would be left alone with 40 s, and 50 s are not longer than that by a cold start.
    assert shift(load("a", SMALL, 2), load("b", SMALL, 40), load("c", LARGE, 50)) is None
    assert shift(load("a", SMALL, 2), load("b", SMALL, 10), load("c", LARGE, 50)) is not None


def test_who_drains_is_in_no_pool() -> None:
    assert shift(IDLE[0], replace(IDLE[1], is_draining=True), load("c", LARGE, 500)) is None


def test_models_do_not_lend_each_other_replicas() -> None:
    pools = pools_of([*IDLE, load("c", LARGE, 500, "other")])
    assert choose_shift(pools["m"], "m", COLD_NS, PARAMS) is None
    assert choose_shift(pools["other"], "other", COLD_NS, PARAMS) is None


def test_order_of_reports_does_not_matter() -> None:
    loads = [load(name, SMALL, 0) for name in "dab"] + [load("c", LARGE, 90)]
    assert shift(*loads) == shift(*reversed(loads))


def test_a_move_must_be_worth_while_without_a_break() -> None:
    standing, found = Standing(PARAMS), shift(*IDLE, load("c", LARGE, 90))
    s = NS_PER_S
    assert not standing.holds("m", found, 0)
    assert not standing.holds("m", found, 1 * s)
    assert not standing.holds("m", None, 2 * s - 1)  # one report says otherwise
    assert not standing.holds("m", found, 2 * s)
    assert standing.holds("m", found, 4 * s)
