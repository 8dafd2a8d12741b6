from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.least_tokens import LeastTokens


def test_weighs_queue_context_and_expected_output() -> None:  # SPEC A1
    views = [
        View("rep-a", queued_tokens=100),
        View("rep-b", kv_tokens=900),
        View("rep-c", output_tokens_expected=95),
    ]
    ranked = LeastTokens(LeastTokens.Params()).rank(llm("req-1"), views, 0)
    assert [(item.replica, item.score) for item in ranked] == [("rep-b", 90.0), ("rep-c", 95.0), ("rep-a", 100.0)]
