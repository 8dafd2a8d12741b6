from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.least_requests import LeastRequests


def test_prefers_fewest_requests_whatever_their_tokens() -> None:  # SPEC A1
    views = [View("rep-a", requests=2), View("rep-b", requests=1, queued_tokens=9000)]
    ranked = LeastRequests(LeastRequests.Params()).rank(llm("req-1"), views, 0)
    assert [item.replica for item in ranked] == ["rep-b", "rep-a"]


def test_breaks_ties_by_replica_id() -> None:
    ranked = LeastRequests(LeastRequests.Params()).rank(llm("req-1"), [View("rep-b"), View("rep-a")], 0)
    assert ranked[0].replica == "rep-a"
