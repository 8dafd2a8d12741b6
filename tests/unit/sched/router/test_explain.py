from tests.unit.sched.router.views import llm, report

from headway.core.ids import NodeId
from headway.sched.policies import routing_policy
from headway.sched.registry import PolicyChoice
from headway.sched.router.explain import explain
from headway.sched.router.machine import Choices, PdPools, Room, Router
from headway.sched.router.prefix_index import IndexParams, PrefixIndex

A, B, C = NodeId("rep-a"), NodeId("rep-b"), NodeId("rep-c")


def router(policy: str) -> Router:
    made = Router(Choices(routing_policy(PolicyChoice(policy))), PdPools(), Room(), PrefixIndex(IndexParams()))
    for node in (A, B, C):
        made.join(node, 1, 0)
    made.hear(report(A, 1, prefill_tokens_per_s=1000.0, waiting=1, waiting_prefill_tokens=500), 0)
    made.hear(report(B, 1, prefill_tokens_per_s=1000.0), 0)
    return made


def test_the_table_shows_every_replica_with_parts_that_add_up() -> None:  # SPEC A2, L-5
    made = router("cost_aware")
    best, second, silent = explain(made, llm("req-1", prompt=100), 0)
    assert [best.replica, second.replica, silent.replica] == [B, A, C]
    assert (best.place, second.place, silent.place) == (0, 1, None)
    for each in (best, second):
        assert each.score == sum(each.parts.values())
    assert second.parts["queue"] == 0.5
    assert silent.reason == "it has not reported yet"


def test_who_is_no_candidate_says_why() -> None:
    made = router("cost_aware")
    made.hear(report(A, 2, draining=True), 1)
    made.hear(report(C, 1, model="other"), 1)
    reasons = {each.replica: each.reason for each in explain(made, llm("req-1"), 1)}
    assert reasons[A] == "it is draining"
    assert reasons[C] == "it serves other as llm"


def test_a_policy_without_parts_still_shows_its_scores() -> None:
    best = explain(router("least_requests"), llm("req-1"), 0)[0]
    assert (best.replica, best.score, best.parts) == (B, 0.0, {})


def test_explaining_changes_nothing() -> None:
    made = router("cost_aware")
    first = explain(made, llm("req-1"), 0)
    assert explain(made, llm("req-1"), 0) == first
    assert made.replicas[B].in_flight == 0
