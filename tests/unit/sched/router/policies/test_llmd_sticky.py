import math

from tests.unit.sched.router.rivals import BLOCK, fleets, names
from tests.unit.sched.router.views import View, llm

from headway.core.request import LlmRequest
from headway.sched.router.policies.llmd_sticky import LlmdSticky

SHARED = llm("req-1", prompt=160, block_hashes=tuple(bytes([n]) for n in range(10)), block_tokens=BLOCK)


def published(params: LlmdSticky.Params, request: LlmRequest, views: list[View]) -> set[str]:
    """The affinity filter of llm-d-router and its token-load scorer, as its README tells them."""
    warm, cold = [], []
    for v in views:
        total = len(request.block_hashes)
        score = min(1.0, math.ceil(v.hit_tokens / BLOCK) / total) if total else 0.0
        (warm if score >= params.affinity else cold).append(v)
    kept = warm or cold
    if warm and cold and params.penalty_s > 0:
        peak = params.peak_tokens_per_s or max(v.prefill_tokens_per_s for v in views)
        if peak == 0:
            kept = views
        else:
            best_warm = min(v.uncached_in_flight / peak for v in warm)
            best_cold = min(v.uncached_in_flight / peak for v in cold)
            kept = views if best_warm - best_cold > params.penalty_s else warm
    loads = {v.id: v.uncached_in_flight + request.prompt_tokens - v.hit_tokens for v in kept}
    return {name for name, load in loads.items() if load == min(loads.values())}


def test_is_the_published_filter_and_scorer() -> None:
    for params in (
        LlmdSticky.Params(),
        LlmdSticky.Params(affinity=0.3, penalty_s=3.0, peak_tokens_per_s=15928.0),
        LlmdSticky.Params(affinity=0.2, penalty_s=0.0),
    ):
        policy = LlmdSticky(params)
        for request, views in fleets("llmd_sticky"):
            assert names(policy.rank(request, views, 0))[0] in published(params, request, views)


def test_stays_until_the_queue_costs_more_than_the_penalty() -> None:  # tau = R_peak x T_max = 20,480 x 14 = 286,720
    policy = LlmdSticky(LlmdSticky.Params(peak_tokens_per_s=20_480.0, penalty_s=14.0))
    warm, cold = View("rep-a", hit_tokens=159, uncached_in_flight=286_720), View("rep-b")
    assert names(policy.rank(SHARED, [warm, cold], 0)) == ["rep-a", "rep-b"]
    warm = View("rep-a", hit_tokens=159, uncached_in_flight=286_721)
    assert names(policy.rank(SHARED, [warm, cold], 0)) == ["rep-b", "rep-a"]


def test_without_a_rate_the_gate_keeps_everybody() -> None:
    warm, cold = View("rep-a", hit_tokens=159, uncached_in_flight=500), View("rep-b")
    assert names(LlmdSticky(LlmdSticky.Params()).rank(SHARED, [warm, cold], 0))[0] == "rep-b"


def test_decode_bound_fleets_count_requests() -> None:
    policy = LlmdSticky(LlmdSticky.Params(bound="decode"))
    views = [View("rep-a", in_flight=3), View("rep-b", in_flight=2, uncached_in_flight=9000)]
    assert names(policy.rank(SHARED, views, 0))[0] == "rep-b"
