from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.power_of_two import PowerOfTwo

FLEET = [View(f"rep-{place}", requests=place) for place in range(8)]


def test_prefers_the_lighter_of_two_draws() -> None:  # SPEC A1
    policy = PowerOfTwo(PowerOfTwo.Params())
    for place in range(50):
        ranked = policy.rank(llm(f"req-{place}"), FLEET, 0)
        assert len(ranked) == 2
        assert ranked[0].score < ranked[1].score


def test_draws_every_replica_over_many_requests() -> None:
    policy = PowerOfTwo(PowerOfTwo.Params())
    drawn = {item.replica for place in range(200) for item in policy.rank(llm(f"req-{place}"), FLEET, 0)}
    assert drawn == {view.id for view in FLEET}


def test_a_retry_draws_anew() -> None:
    policy = PowerOfTwo(PowerOfTwo.Params())
    pairs = {tuple(item.replica for item in policy.rank(llm("req-1", attempts=n), FLEET, 0)) for n in range(8)}
    assert len(pairs) > 1
