from collections.abc import Iterable

import pytest
from tests.unit.sched.router.rivals import BLOCK, fleets, history, names
from tests.unit.sched.router.views import View, llm

from headway.core.ids import NodeId
from headway.core.request import LlmRequest
from headway.sched.router.policies.sglang_cache_aware import SglangCacheAware
from headway.sched.router.protocol import Dispatched, Learned, Left


def sent(events: Iterable[Learned]) -> list[tuple[str, tuple[bytes, ...]]]:
    """(worker, prompt) of everything in the tree, oldest first."""
    rows: list[tuple[str, tuple[bytes, ...]]] = []
    for event in events:
        if isinstance(event, Dispatched) and isinstance(event.request, LlmRequest):
            rows.append((event.replica, event.request.block_hashes))
        elif isinstance(event, Left):
            rows = [row for row in rows if row[0] != event.replica]
    return rows


def published(
    params: SglangCacheAware.Params,
    rows: list[tuple[str, tuple[bytes, ...]]],
    request: LlmRequest,
    views: list[View],
) -> str:
    """cache_aware as sglang-router and SMG choose; ties go to the lowest id."""
    loads = [v.in_flight for v in views]
    usage = [v.kv_usage for v in views]
    least = min(views, key=lambda v: (v.in_flight, v.id)).id
    is_imbalanced = max(loads) - min(loads) > params.imbalance_abs and max(loads) > params.imbalance_rel * min(loads)
    if is_imbalanced or max(usage) > params.kv_usage_overload or max(usage) - min(usage) > params.kv_usage_spread:
        return least
    best, holder = 0, None
    for worker, prompt in rows:
        depth = 0
        while depth < min(len(prompt), len(request.block_hashes)) and prompt[depth] == request.block_hashes[depth]:
            depth += 1
        if depth and depth >= best:  # of equals the latest
            best, holder = depth, worker
    if best * BLOCK / request.prompt_tokens > params.match_min:
        return holder if holder in [v.id for v in views] else least
    if params.miss == "least_load":
        return least
    sizes = {v.id: len({digest for worker, prompt in rows if worker == v.id for digest in prompt}) for v in views}
    return min(views, key=lambda v: (sizes[v.id], v.id)).id


SETTINGS = [
    SglangCacheAware.Params(),
    SglangCacheAware.Params(imbalance_abs=64, imbalance_rel=1.5, match_min=0.3, miss="smallest_tree"),
    SglangCacheAware.Params(kv_usage_overload=0.9, kv_usage_spread=0.4, match_min=0.1, imbalance_abs=200),
]


@pytest.mark.parametrize("params", SETTINGS)
def test_is_the_published_choice(params: SglangCacheAware.Params) -> None:
    kinds = set()
    for place in range(20):
        policy, events = SglangCacheAware(params), list(history(f"sglang-{place}"))
        for event in events:
            policy.observe(event)
        rows = sent(events)
        for request, views in fleets(f"sglang-{place}", 15):
            (first, *_rest) = policy.rank(request, views, 0)
            assert first.replica == published(params, rows, request, views)
            kinds.add(first.reason.split()[0].rstrip(";"))
    assert kinds == {"imbalanced", "match", "miss"}


def test_an_imbalanced_choice_is_inserted_too() -> None:
    policy, (request, _views) = SglangCacheAware(SglangCacheAware.Params()), next(fleets("insert"))
    hot = [View("rep-0", in_flight=100), View("rep-1")]
    assert names(policy.rank(request, hot, 0))[0] == "rep-1"
    policy.observe(Dispatched(0, request, NodeId("rep-1")))
    if len(request.block_hashes) * BLOCK > request.prompt_tokens / 2:
        assert names(policy.rank(request, [View("rep-0"), View("rep-1", in_flight=9)], 0))[0] == "rep-1"


def test_the_tree_is_bounded_and_forgets_leaves_first() -> None:  # production-stack#711
    policy = SglangCacheAware(SglangCacheAware.Params(blocks_max=3))
    old = llm("req-1", prompt=64, block_hashes=(b"a", b"b", b"c", b"d"), block_tokens=BLOCK)
    policy.observe(Dispatched(0, old, NodeId("rep-1")))
    views = [View("rep-0"), View("rep-1", in_flight=3)]
    assert policy.rank(old, views, 0)[0].reason.startswith("match 0.75")
    new = llm("req-2", prompt=32, block_hashes=(b"x", b"y"), block_tokens=BLOCK)
    policy.observe(Dispatched(0, new, NodeId("rep-1")))
    assert policy.rank(old, views, 0)[0].reason.startswith("miss 0.25")


def test_who_left_is_in_nobodys_tree() -> None:
    policy = SglangCacheAware(SglangCacheAware.Params())
    request = llm("req-1", prompt=16, block_hashes=(b"a",), block_tokens=BLOCK)
    policy.observe(Dispatched(0, request, NodeId("rep-1")))
    policy.observe(Left(1, NodeId("rep-1")))
    assert names(policy.rank(request, [View("rep-0"), View("rep-1")], 0))[0] == "rep-0"
