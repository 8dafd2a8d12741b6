from collections import deque
from random import Random

import pytest

from headway.core.units import NS_PER_S
from headway.sched.fleet.scaling import PoolLoad, Scaling, ScalingParams

PARAMS = ScalingParams(lead_s=10.0, slo_s=4.0, idle_s=60.0, replicas_min=1, replicas_max=8)


def load(wait_s: float, replicas: int = 2, queued: int = 5, running: int = 3, pool: str = "mixed") -> PoolLoad:
    return PoolLoad("m", pool, replicas, queued, running, wait_s, 4.0)


def wanted(scaling: Scaling, one: PoolLoad, at_s: float) -> int:
    (figures,) = scaling.look([one], round(at_s * NS_PER_S))
    return figures.wanted


# SPEC A12
def test_it_grows_when_the_expected_wait_is_above_half_the_slo() -> None:
    assert wanted(Scaling(PARAMS), load(2.0), 0) == 2
    assert wanted(Scaling(PARAMS), load(2.1), 0) == 3


# SPEC A12
def test_a_wait_that_rises_counts_as_it_will_be_when_a_new_replica_serves() -> None:
    scaling = Scaling(PARAMS)
    assert wanted(scaling, load(0.5), 0) == 2
    assert wanted(scaling, load(0.7), 1) == 3  # 0.7 s and 0.2 s more each second, for 10 s
    assert wanted(Scaling(PARAMS), load(0.7), 1) == 2


def test_one_look_at_most_doubles_a_pool_and_never_passes_the_limit() -> None:
    assert wanted(Scaling(PARAMS), load(1000.0), 0) == 4
    assert wanted(Scaling(PARAMS), load(1000.0, replicas=7), 0) == 8
    assert wanted(Scaling(PARAMS), load(1000.0, replicas=9), 0) == 9


def test_what_was_asked_for_stands_until_the_wait_has_halved() -> None:
    scaling = Scaling(PARAMS)
    assert wanted(scaling, load(4.0), 0) == 4
    assert wanted(scaling, load(1.5), 1) == 4
    assert wanted(scaling, load(0.9), 2) == 2


# SPEC A12
def test_it_shrinks_only_when_nothing_waits_or_runs_for_long() -> None:
    scaling = Scaling(PARAMS)
    assert wanted(scaling, load(0.0, queued=0, running=1), 0) == 2
    assert wanted(scaling, load(0.0, queued=0, running=0), 59) == 2
    assert wanted(scaling, load(0.0, queued=0, running=0), 60) == 1
    assert wanted(scaling, load(0.0, queued=0, running=0, replicas=1), 200) == 1


def test_a_pool_without_replicas_wants_one_when_somebody_waits() -> None:
    none = ScalingParams(replicas_min=0)
    assert wanted(Scaling(none), load(0.0, replicas=0, queued=1), 0) == 1
    assert wanted(Scaling(none), load(0.0, replicas=0, queued=0), 0) == 0


# SPEC A12
def test_pools_are_judged_apart() -> None:
    figures = Scaling(PARAMS).look([load(9.0, pool="prefill"), load(0.1, pool="decode")], 0)
    assert [(one.pool, one.wanted) for one in figures] == [("prefill", 4), ("decode", 2)]


CALM = ScalingParams(interval_s=1.0, lead_s=0.0, slo_s=4.0, idle_s=60.0, calm_s=20.0, fit_share=0.5, replicas_max=16)


def busy(load_: float, replicas: int, wait_s: float = 0.0, running: int = 4) -> PoolLoad:
    """A pool with the load of so many whole replicas."""
    return PoolLoad("m", "mixed", replicas, 0, running, wait_s, 4.0, load_)


def test_a_pool_shrinks_under_load_when_fewer_were_enough_for_a_while() -> None:
    scaling = Scaling(CALM)
    assert [wanted(scaling, busy(0.9, 4), at) for at in range(20)] == [4] * 20
    assert wanted(scaling, busy(0.9, 4), 20) == 3
    assert wanted(scaling, busy(0.9, 3), 21) == 2
    assert wanted(scaling, busy(0.9, 2), 22) == 2  # 0.9 of one is more than half of it


def test_the_peak_of_the_while_decides() -> None:
    scaling = Scaling(CALM)
    for at in range(20):
        wanted(scaling, busy(1.4 if at == 5 else 0.2, 4), at)
    assert wanted(scaling, busy(0.2, 4), 20) == 3  # the peak of 5 s needs three
    assert wanted(scaling, busy(0.2, 3), 25) == 3
    assert wanted(scaling, busy(0.2, 3), 26) == 2


def test_who_does_not_know_its_load_shrinks_only_when_idle() -> None:
    scaling = Scaling(CALM)
    unknown = [wanted(scaling, load(0.0, replicas=4, queued=0, running=1), at) for at in range(200)]
    assert set(unknown) == {4}


def test_what_was_too_much_once_is_not_tried_again() -> None:
    """Prompts and KV say that one replica is enough; with eight requests it asked for another."""
    scaling = Scaling(CALM)
    assert wanted(scaling, busy(0.1, 1, wait_s=3.0, running=8), 0) == 2
    later = [wanted(scaling, busy(0.1, 2, running=8), at) for at in range(1, 100)]
    assert set(later) == {2}
    assert wanted(scaling, busy(0.1, 2, running=3), 125) == 1


@pytest.mark.parametrize("seed", range(12))
def test_no_load_makes_it_flap_or_leave_its_limits(seed: int) -> None:
    """Whatever comes: no shrink within `calm_s` of asking for more, never below the peak of that while or the least."""
    rng, scaling, replicas, peaks = Random(seed), Scaling(CALM), 4, deque[float](maxlen=20)
    crowded_s, level = -100.0, 1.0
    for at in range(600):
        level = max(0.0, min(12.0, level * rng.choice([0.5, 0.95, 1.0, 1.05, 2.0]) + rng.choice([0.0, 0.1])))
        wait_s = max(0.0, level - replicas)
        peaks.append(level)
        (figures,) = scaling.look([busy(level, replicas, wait_s, running=round(4 * level))], at * NS_PER_S)
        assert CALM.replicas_min <= figures.wanted <= CALM.replicas_max
        if figures.predicted_s > 2.0:
            crowded_s = at
        if figures.wanted < replicas:
            assert figures.wish == "shrink"
            assert at - crowded_s >= CALM.calm_s
            assert max(peaks) <= CALM.fit_share * figures.wanted
        replicas = figures.wanted


def test_no_wish_is_told_apart_from_a_wish_for_what_there_is() -> None:
    scaling = Scaling(PARAMS)
    wishes = [
        scaling.look([one], round(at * NS_PER_S))[0].wish
        for at, one in ((0, load(4.0)), (1, load(1.5)), (2, load(0.9)), (3, load(0.0, queued=0, running=0)))
    ]
    assert wishes == ["grow", "grow", "hold", "hold"]
    assert scaling.look([load(0.0, queued=0, running=0)], 62 * NS_PER_S)[0].wish == "shrink"
