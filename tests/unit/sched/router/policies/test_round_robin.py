from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.round_robin import RoundRobin
from headway.sched.router.protocol import Dispatched


def ranked(policy: RoundRobin) -> list[str]:
    return [item.replica for item in policy.rank(llm("req-1"), [View("rep-b"), View("rep-a"), View("rep-c")], 0)]


def test_takes_turns_by_id_and_wraps() -> None:  # SPEC A1
    policy = RoundRobin(RoundRobin.Params())
    turns = []
    for _ in range(4):
        turns.append(ranked(policy)[0])
        policy.observe(Dispatched(0, llm("req-1"), turns[-1]))
    assert turns == ["rep-a", "rep-b", "rep-c", "rep-a"]


def test_ranking_does_not_move_the_turn() -> None:
    policy = RoundRobin(RoundRobin.Params())
    assert ranked(policy) == ranked(policy)
