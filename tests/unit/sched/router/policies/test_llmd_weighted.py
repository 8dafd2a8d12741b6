import math

from tests.unit.sched.router.rivals import BLOCK, fleets, names
from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.llmd_weighted import LlmdWeighted


def published(params: LlmdWeighted.Params, request: object, views: list[View]) -> dict[str, float]:
    """llm-d-router's prefix, queue-depth and KV scorers and their weighted sum, straight from the READMEs."""
    queues = [v.waiting for v in views]
    sums = {}
    for v in views:
        total = len(request.block_hashes)  # type: ignore[attr-defined]  # a request
        matched = math.ceil(v.hit_tokens / BLOCK)
        ratio = matched / total if total else 0.0
        length = min(1.0, v.hit_tokens / params.model_tokens_max) ** 2
        prefix = params.prefix_length_weight * length + (1.0 - params.prefix_length_weight) * min(1.0, ratio)
        spread = max(queues) - min(queues)
        queue = (max(queues) - v.waiting) / spread if spread else 1.0
        sums[v.id] = params.prefix * prefix + params.queue * queue + params.kv * (1 - v.kv_usage)
    return sums


def test_is_the_published_weighted_sum() -> None:
    for params in (LlmdWeighted.Params(), LlmdWeighted.Params(prefix=1, queue=1, kv=1, prefix_length_weight=0.5)):
        policy = LlmdWeighted(params)
        for request, views in fleets("llmd_weighted"):
            sums = published(params, request, views)
            ranked = policy.rank(request, views, 0)
            assert math.isclose(sums[ranked[0].replica], max(sums.values()), abs_tol=1e-9)
            assert all(math.isclose(-item.score, sums[item.replica], abs_tol=1e-9) for item in ranked)


def test_equal_sums_are_drawn() -> None:
    policy = LlmdWeighted(LlmdWeighted.Params())
    views = [View(f"rep-{place}") for place in range(4)]
    assert {names(policy.rank(llm(f"req-{n}"), views, 0))[0] for n in range(60)} == {v.id for v in views}


def test_the_queue_score_is_one_for_all_when_all_wait_alike() -> None:
    policy = LlmdWeighted(LlmdWeighted.Params(prefix=0, kv=0))
    ranked = policy.rank(llm("req-1"), [View("rep-a", waiting=3), View("rep-b", waiting=3)], 0)
    assert [item.score for item in ranked] == [-2.0, -2.0]
