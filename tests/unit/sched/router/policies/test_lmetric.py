from tests.unit.sched.router.rivals import fleets, names
from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.lmetric import Lmetric

POLICY = Lmetric(Lmetric.Params())


def test_is_the_published_product() -> None:  # arXiv 2603.15202: argmin (queued + own uncached) x (running + queued)
    for request, views in fleets("lmetric"):
        best, least = "", float("inf")
        for replica in sorted(views, key=lambda v: v.id):
            tokens = replica.queued_tokens + (len(request.prompt) - replica.hit_tokens)
            if tokens * (1 + replica.requests) < least:
                best, least = replica.id, tokens * (1 + replica.requests)
        assert names(POLICY.rank(request, views, 0))[0] == best


def test_the_queued_term_is_part_of_the_product() -> None:
    views = [View("rep-a", queued_tokens=5000, hit_tokens=90, requests=2), View("rep-b", requests=2)]
    assert names(POLICY.rank(llm("req-1", prompt=100), views, 0)) == ["rep-b", "rep-a"]


def test_among_idle_replicas_the_one_with_the_prefix_wins() -> None:
    views = [View("rep-a"), View("rep-b", hit_tokens=64)]
    assert names(POLICY.rank(llm("req-1", prompt=100), views, 0))[0] == "rep-b"
