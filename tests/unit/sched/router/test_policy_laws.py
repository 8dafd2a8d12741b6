"""Laws that every routing policy inherits by being in the folder."""

import pickle

import pytest
from tests.unit.sched.router.views import View, llm

from headway.core.draw import draw_below
from headway.sched.policies import ROUTERS, routing_policy
from headway.sched.registry import PolicyChoice, discover
from headway.sched.router.protocol import RoutingPolicy

CASES = 60


def fleet(case: int) -> list[View]:
    def draw(k: int, bound: int) -> int:
        return draw_below(7, f"case-{case}", 0, k, bound)

    return [
        View(
            f"rep-{place}",
            draw(4 * place + 1, 4),
            draw(4 * place + 2, 300),
            draw(4 * place + 3, 300),
            draw(4 * place + 4, 99),
        )
        for place in range(1 + draw(0, 6))
    ]


@pytest.fixture(params=sorted(discover(ROUTERS)))
def policy(request: pytest.FixtureRequest) -> RoutingPolicy:
    return routing_policy(PolicyChoice(request.param))


def test_ranks_only_candidates_once(policy: RoutingPolicy) -> None:
    for views in map(fleet, range(CASES)):
        ranked = [item.replica for item in policy.rank(llm("req-1"), views, 0)]
        assert ranked
        assert len(set(ranked)) == len(ranked)
        assert set(ranked) <= {view.id for view in views}


def test_ranking_is_repeatable_and_writes_nothing(policy: RoutingPolicy) -> None:
    for views in map(fleet, range(CASES)):
        before = pickle.dumps(vars(policy))
        assert policy.rank(llm("req-1"), views, 0) == policy.rank(llm("req-1"), views, 0)
        assert pickle.dumps(vars(policy)) == before


def test_order_of_candidates_does_not_matter(policy: RoutingPolicy) -> None:
    for views in map(fleet, range(CASES)):
        assert policy.rank(llm("req-1"), views, 0) == policy.rank(llm("req-1"), views[::-1], 0)
