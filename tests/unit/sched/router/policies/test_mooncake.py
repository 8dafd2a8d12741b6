import pytest
from tests.unit.sched.router.rivals import fleets, names
from tests.unit.sched.router.views import View, llm

from headway.core.reports import StepCoefficients
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_S
from headway.sched.router.policies.mooncake import Mooncake


def published(params: Mooncake.Params, request: LlmRequest, views: list[View]) -> dict[str, float]:
    """Algorithm 1 of FAST'25: TTFT of each instance."""
    rates = {v.id: v.prefill_tokens_per_s for v in views}
    slowest = min([rate for rate in rates.values() if rate] or [1.0])
    best_len, ttfts = max(v.hit_tokens for v in views), {}
    for v in views:
        rate = rates[v.id] or slowest
        ratio = best_len / v.hit_tokens if v.hit_tokens else (float("inf") if best_len else 0)
        if params.pull_tokens_per_s and ratio > params.threshold:
            prefix, transfer = best_len, params.pull_fixed_s + (best_len - v.hit_tokens) / params.pull_tokens_per_s
        else:
            prefix, transfer = v.hit_tokens, 0.0
        ttfts[v.id] = transfer + v.queued_tokens / rate + (request.prompt_tokens - prefix) / rate
    return ttfts


SETTINGS = [
    Mooncake.Params(),
    Mooncake.Params(threshold=1.0, pull_tokens_per_s=50_000.0),
    Mooncake.Params(threshold=4.0, pull_tokens_per_s=2000.0, pull_fixed_s=0.02),
]


@pytest.mark.parametrize("params", SETTINGS)
def test_is_algorithm_1(params: Mooncake.Params) -> None:
    policy = Mooncake(params)
    for request, views in fleets("mooncake"):
        ttfts = published(params, request, views)
        ranked = policy.rank(request, views, 0)
        assert {item.replica: pytest.approx(item.score) for item in ranked} == ttfts
        assert names(ranked)[0] == min(sorted(ttfts), key=lambda name: round(ttfts[name], 12))


def test_beyond_the_threshold_the_prefix_is_the_best_one_in_the_fleet() -> None:
    hits = {"rep-a": 90, "rep-b": 30, "rep-c": 45}
    views = [View(name, hit_tokens=hit, prefill_tokens_per_s=100.0) for name, hit in hits.items()]
    pulling = Mooncake(Mooncake.Params(threshold=2.0, pull_tokens_per_s=1000.0))
    seconds = {item.replica: item.score for item in pulling.rank(llm("req-1", prompt=100), views, 0)}
    assert seconds["rep-b"] == pytest.approx(60 / 1000 + 10 / 100)  # 90 / 30 > 2: pulls 60, computes 10
    assert seconds["rep-c"] == pytest.approx(55 / 100)  # 90 / 45 is not more than 2: computes 55
    told = {
        item.replica: (item.pull_from, item.pull_tokens) for item in pulling.rank(llm("req-1", prompt=100), views, 0)
    }
    assert told == {"rep-a": (None, 0), "rep-b": ("rep-a", 90), "rep-c": (None, 0)}
    alone = Mooncake(Mooncake.Params(threshold=2.0))
    assert {i.replica: i.score for i in alone.rank(llm("req-1", prompt=100), views, 0)}["rep-b"] == pytest.approx(0.7)


def test_a_replica_that_tells_its_step_cost_is_judged_by_its_polynomial() -> None:
    cost = StepCoefficients(base_ns=0, row_ns=0, kv_ns=0, token_ns=NS_PER_S / 1000, pair_ns=NS_PER_S / 10_000)
    (only,) = Mooncake(Mooncake.Params()).rank(
        llm("req-1", prompt=100), [View("rep-a", hit_tokens=60, step_cost=cost, prefill_tokens_per_s=1000.0)], 0
    )
    assert only.score == pytest.approx(40 / 1000 + (40 * 60 + 40 * 41 / 2) / 10_000)
