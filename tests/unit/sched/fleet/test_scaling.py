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
