"""`cost_aware`: what each part charges, and in which order replicas come (SPEC A2, A4, A5, A6)."""

from typing import Any

import pytest
from tests.unit.sched.diffusion.pictures import COST as DENOISE
from tests.unit.sched.diffusion.pictures import picture
from tests.unit.sched.router.views import View, llm

from headway.core.ids import NodeId, RequestId
from headway.core.reports import StepCoefficients
from headway.core.request import DiffusionRequest, Slo
from headway.core.units import NS_PER_S, Ns, ns_from_ms
from headway.sched.router.cost_terms import KvPull
from headway.sched.router.policies.cost_aware import CostAware
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Left

A, B, C = NodeId("rep-a"), NodeId("rep-b"), NodeId("rep-c")
COST = StepCoefficients(base_ns=10e6, row_ns=0.1e6, kv_ns=0.0, token_ns=0.1e6, pair_ns=0.0)


def policy(**params: Any) -> CostAware:  # Any: fields of Params
    return CostAware(CostAware.Params(**{"explore": 0.0, "decode": 1.0, "others": 1.0, **params}))


def view(node: NodeId, **fields: Any) -> View:  # Any: fields of View
    return View(node, **{"prefill_tokens_per_s": 1000.0, "step_cost": COST, **fields})


def order(made: CostAware, *views: View, at_ns: Ns = 0, **request: Any) -> list[str]:  # Any: fields of LlmRequest
    asked = llm("req-1", **{"prompt": 100, "output_tokens_predicted": 10, **request})
    return [item.replica for item in made.rank(asked, views, at_ns)]


def costs(made: CostAware, *views: View, **request: Any) -> dict[str, dict[str, float]]:  # Any: fields of LlmRequest
    asked = llm("req-1", **{"prompt": 100, "output_tokens_predicted": 10, **request})
    return {str(node): found for node, found in made.explain(asked, views, 0).items()}


def serve(
    made: CostAware, name: str, node: NodeId, at_ns: Ns, first_ns: Ns | None = None, **fields: Any
) -> None:  # Any: fields of LlmRequest
    """Dispatch a request, let its first token come, and end it."""
    request = llm(name, **{"prompt": 1000, **fields})
    made.observe(Dispatched(at_ns, request, node))
    made.observe(FirstToken(at_ns + (first_ns or 1), request.id, node, first_ns or 1))
    made.observe(Ended(at_ns + (first_ns or 1), request.id, node, 1))


def test_the_parts_add_up_to_the_score() -> None:  # SPEC A2, L-5
    made = policy(host="h-1", tenant=1.0)
    made.observe(Dispatched(0, llm("req-0", tenant="other"), A))
    views = (
        view(A, queued_tokens=300, requests=4, kv_tokens_total=200, kv_usage=0.9, host="h-2"),
        view(B, queued_tokens_spread=10, age_ns=NS_PER_S),
    )
    slo = Slo(ttft_deadline_ns=ns_from_ms(50), tpot_ns=ns_from_ms(1), e2e_deadline_ns=ns_from_ms(60))
    asked = llm("req-1", prompt=100, output_tokens_predicted=10, slo=slo, lora="sql")
    found = made.explain(asked, views, 0)
    for item in made.rank(asked, views, 0):
        assert sum(found[item.replica].values()) == item.score


def test_queue_and_prefill_are_tokens_over_the_replicas_own_rate() -> None:  # SPEC A2
    found = costs(policy(), view(A, queued_tokens=500), view(B, queued_tokens=500, prefill_tokens_per_s=2000.0))
    assert (found[A]["queue"], found[A]["prefill"]) == (0.5, pytest.approx(0.1))
    assert (found[B]["queue"], found[B]["prefill"]) == (0.25, pytest.approx(0.05))


def test_decode_is_charged_at_the_resulting_batch() -> None:  # SPEC A2
    assert costs(policy(), view(A, requests=9))[A]["decode"] == pytest.approx(10 * (0.010 + 10 * 0.0001))


def test_the_delay_of_those_that_are_there_belongs_to_the_cost() -> None:
    # LMetric (arXiv 2603.15202): a hit on a crowded replica is not as cheap as on an idle one
    found = costs(policy(), view(A, requests=20), view(B))
    assert found[A]["others"] == pytest.approx(20 * (0.1 + 10 * 0.0001))
    assert found[B]["others"] == 0.0


def test_low_load_keeps_a_prefix_together_and_high_load_spreads_it() -> None:
    # sglang PR#25466, production-stack#957: one score, no threshold
    made = policy()
    assert order(made, view(A, hit_tokens=900, requests=1), view(B), prompt=1000) == [A, B]
    assert order(made, view(A, hit_tokens=900, queued_tokens=5000, requests=9), view(B), prompt=1000) == [B, A]


def test_each_replica_is_judged_alone() -> None:
    # vllm-router PR#238: one hot replica does not switch prefix routing off for the others
    hot = view(C, queued_tokens=50_000, requests=200)
    assert order(policy(), view(A, hit_tokens=900, requests=2), view(B, requests=1), hot, prompt=1000) == [A, B, C]


def test_a_prefix_that_all_hold_decides_nothing() -> None:
    # production-stack#957: what counts is the seconds saved against the others
    shared = {"hit_tokens": 900}
    assert order(policy(), view(A, requests=3, **shared), view(B, **shared), prompt=1000) == [B, A]


def test_saved_seconds_count_and_not_the_matched_share() -> None:
    # GAIE#2561: a whole match of a short prompt is worth less than half of a long one
    made = policy()
    busy = {"queued_tokens": 200}
    assert order(made, view(A, hit_tokens=90, **busy), view(B), prompt=100) == [B, A]
    assert order(made, view(A, hit_tokens=4000, **busy), view(B), prompt=8000) == [A, B]


def test_a_replica_that_nobody_heard_of_is_judged_as_those_that_were() -> None:
    # the steps of who answered first carried prompts: against them as an empty batch, it got everything
    first = view(A, requests=2, kv_tokens=900, step_ns=100_000_000)
    silent = View(B)
    assert order(policy(), first, silent) == [B, A]
    found = costs(policy(), first, silent)
    assert found[B]["decode"] == pytest.approx(10 * (0.010 + 0.0001))
    assert found[B]["prefill"] == found[A]["prefill"]


def test_of_unequal_replicas_the_middle_one_is_what_is_believed_of_a_silent_one() -> None:
    quick, slow = (StepCoefficients(base, 0.0, 0.0, 0.0, 0.0) for base in (5e6, 40e6))
    views = [view(A), view(C, step_cost=quick), view(NodeId("rep-d"), step_cost=slow), View(B)]
    assert costs(policy(), *views)[B]["decode"] == pytest.approx(10 * (0.010 + 0.0001))


def test_a_replica_that_told_its_steps_and_not_their_cost_is_taken_at_its_word() -> None:
    found = costs(policy(), view(A), View(B, step_ns=50_000_000))
    assert found[B]["decode"] == pytest.approx(10 * 0.0505)


def test_a_slow_replica_gets_less() -> None:
    slow = view(A, prefill_tokens_per_s=250.0)
    assert order(policy(), slow, view(B, queued_tokens=200)) == [B, A]
    assert order(policy(), slow, view(B, queued_tokens=400)) == [A, B]


def test_kv_that_would_not_fit_is_charged() -> None:  # SPEC A2
    # smg PR#1621: request counts miss a full KV
    full = view(A, kv_tokens_total=1000, kv_usage=0.95)
    empty = view(B, kv_tokens_total=1000, kv_usage=0.5)
    found = costs(policy(), full, empty)
    assert found[A]["kv"] > 0.0
    assert found[B]["kv"] == 0.0


def test_a_deadline_that_is_missed_costs_once() -> None:
    made, slo = policy(slo=2.0, slo_ramp_s=0.4, late=1.0), Slo(ttft_deadline_ns=ns_from_ms(400))
    found = costs(made, view(A, queued_tokens=500), view(B, queued_tokens=200), view(C, queued_tokens=9000), slo=slo)
    assert [found[node]["slo"] for node in (A, B, C)] == [pytest.approx(2 * 0.2 / 0.4), 0.0, 2.0]


def test_who_is_late_everywhere_goes_where_it_takes_least_from_others() -> None:
    # waiting past the deadline counts little: the crowd of A can still be in time
    slo = Slo(ttft_deadline_ns=ns_from_ms(400))
    crowd, idle = view(A, queued_tokens=1000, requests=9), view(B, queued_tokens=3000)
    assert order(policy(others=0.3), crowd, idle, prompt=500, slo=slo) == [B, A]
    assert order(policy(others=0.3, late=1.0), crowd, idle, prompt=500, slo=slo) == [A, B]


def test_no_deadline_makes_a_cost_negative() -> None:
    slo = Slo(ttft_deadline_ns=1, e2e_deadline_ns=1)
    for queued in (0, 10, 100_000):
        asked = llm("req-1", slo=slo)
        assert policy(slo=0.0, late=0.0).rank(asked, [view(A, queued_tokens=queued)], 10)[0].score >= 0.0


def test_a_tpot_or_an_end_that_is_missed_costs() -> None:
    made = policy(slo=1.0, slo_ramp_s=1.0)
    crowd = view(A, requests=49)  # a step of 15 ms
    assert costs(made, crowd, slo=Slo(tpot_ns=ns_from_ms(12)))[A]["slo"] == pytest.approx(10 * 0.003)
    assert costs(made, crowd, slo=Slo(tpot_ns=ns_from_ms(16)))[A]["slo"] == 0.0
    assert costs(made, crowd, slo=Slo(e2e_deadline_ns=ns_from_ms(200)))[A]["slo"] == pytest.approx(0.1 + 0.15 - 0.2)


def test_one_tenants_flood_is_spread() -> None:
    made = policy(tenant=1.0)
    for place in range(4):
        made.observe(Dispatched(0, llm(f"req-f{place}", tenant="flood"), A))
    made.observe(Dispatched(0, llm("req-o", tenant="other"), B))
    found = costs(made, view(A), view(B), tenant="flood")
    assert found[A]["tenant"] > 0.0
    assert found[B]["tenant"] == 0.0
    assert costs(made, view(A), view(B), tenant="other")[A]["tenant"] == 0.0


def test_a_tenant_that_is_alone_is_not_spread() -> None:
    made = policy(tenant=1.0)
    for place in range(4):
        made.observe(Dispatched(0, llm(f"req-f{place}"), A))
    assert costs(made, view(A), view(B))[A]["tenant"] == 0.0


def test_another_host_costs_a_little() -> None:
    made = policy(host="h-1", other_host_s=0.25)
    found = costs(made, view(A, host="h-2"), view(B, host="h-1"), view(C))
    assert [found[node]["topology"] for node in (A, B, C)] == [0.25, 0.0, 0.0]


def test_a_loaded_adapter_is_preferred_and_one_on_its_way_too() -> None:  # SPEC A6
    made = policy(adapter_load_s=0.5)
    loaded = view(A, adapters=("sql",))
    assert order(made, loaded, view(B), lora="sql") == [A, B]
    made.observe(Dispatched(0, llm("req-0", lora="sql"), C))
    found = costs(made, loaded, view(B), view(C), lora="sql")
    assert [found[node]["adapter"] for node in (A, B, C)] == [0.0, 0.5, 0.0]


def test_an_adapter_is_loaded_on_a_bounded_number_of_replicas() -> None:  # SPEC A6
    # llm-d-router#709: hot spots, then eviction storms
    made = policy(adapter_replicas_max=2)
    loaded = [view(node, adapters=("sql",), queued_tokens=9000) for node in (A, B)]
    assert set(order(made, *loaded, view(C), lora="sql")) == {A, B}
    assert order(made, loaded[0], view(C), lora="sql")[0] == C


def test_a_pull_is_offered_only_where_replicas_can_fetch() -> None:  # SPEC A2
    holder, other = view(A, hit_tokens=1800, queued_tokens=9000), view(B)
    assert costs(policy(), holder, other, prompt=2000)[B]["pull"] == 0.0
    pull = KvPull(bytes_per_token=1e5, bytes_per_s=1e9, fixed_s=0.1)
    found = costs(policy(kv_pull=pull), holder, other, prompt=2000)
    assert found[B]["pull"] == pytest.approx(0.1 + 1800 * 1e5 / 1e9)
    assert found[B]["prefill"] == pytest.approx(0.2)
    assert found[A]["pull"] == 0.0


def test_who_is_to_pull_is_told_from_whom() -> None:  # SPEC A4
    pull = KvPull(bytes_per_token=1e5, bytes_per_s=1e9, fixed_s=0.1)
    views = [view(A, hit_tokens=1000), view(B), view(C, hit_tokens=1800)]
    ranked = policy(kv_pull=pull).rank(llm("req-1", prompt=2000), views, 0)
    told = {item.replica: (item.pull_from, item.pull_tokens) for item in ranked}
    assert told == {A: (C, 1800), B: (C, 1800), C: (None, 0)}
    assert all(item.pull_from is None for item in policy().rank(llm("req-1", prompt=2000), views, 0))


def test_a_pull_dearer_than_computing_again_is_not_taken() -> None:
    # llm-d measured a floor of about a second: bandwidth alone would always pull
    pull = KvPull(bytes_per_token=1e5, bytes_per_s=1e9, fixed_s=5.0)
    found = costs(policy(kv_pull=pull), view(A, hit_tokens=1800), view(B), prompt=2000)
    assert (found[B]["pull"], found[B]["prefill"]) == (0.0, 2.0)


def test_a_replica_without_a_rate_is_taken_for_a_typical_one() -> None:
    # aibrix#547: a cold start without metrics stays routable
    cold = View(A)
    found = costs(policy(), cold, view(B), view(C))
    assert (found[A]["prefill"], found[A]["decode"]) == (
        found[B]["prefill"],
        pytest.approx(found[B]["decode"], rel=0.01),
    )
    assert order(policy(), cold, view(B, queued_tokens=10), view(C, queued_tokens=10))[0] == A


def test_fronts_that_saw_the_same_old_report_do_not_all_take_one_replica() -> None:
    # aibrix#646: metric-refresh herding
    stale = {"queued_tokens": 1000, "queued_tokens_spread": 500}
    views = (view(A, **stale), view(B, **{**stale, "queued_tokens": 1001}))
    first = {policy().rank(llm(f"req-{place}"), views, 0)[0].replica for place in range(20)}
    assert first == {A, B}


def test_exploration_tries_the_replica_that_was_not_heard_of_for_longest() -> None:
    made = policy(explore=1.0, explore_s=0.2)
    serve(made, "req-0", A, 0)
    assert order(made, view(A), view(B, queued_tokens=100)) == [B, A]
    assert order(made, view(A), view(B, queued_tokens=1000)) == [A, B]


# Sessions


def test_a_session_is_bound_by_its_first_token_and_not_by_its_dispatch() -> None:  # SPEC A4
    made = policy(margin_s=0.05, dwell_s=0.0)
    worse = view(A, queued_tokens=40)
    made.observe(Dispatched(0, llm("req-0", session="s"), A))
    assert order(made, worse, view(B), session="s") == [B, A]
    made.observe(FirstToken(1, RequestId("req-0"), A, 1))
    assert order(made, worse, view(B), session="s") == [A, B]


def test_a_session_moves_only_for_a_gain_above_both_margins() -> None:  # SPEC A4
    made = policy(margin_s=0.05, margin_ratio=0.5, dwell_s=0.0)
    serve(made, "req-0", A, 0, session="s")
    assert order(made, view(A, queued_tokens=180), view(B), session="s", at_ns=9) == [A, B]  # 0.18 s of 0.38 s
    assert order(made, view(A, queued_tokens=400), view(B), session="s", at_ns=9) == [B, A]


def test_a_session_that_just_came_stays() -> None:  # SPEC A4
    made = policy(margin_s=0.01, dwell_s=2.0)
    serve(made, "req-0", A, 0, session="s")
    crowded = view(A, queued_tokens=4000)
    assert order(made, crowded, view(B), session="s", at_ns=NS_PER_S) == [A, B]
    assert order(made, crowded, view(B), session="s", at_ns=3 * NS_PER_S) == [B, A]


def test_a_failed_dispatch_elsewhere_moves_no_session() -> None:  # SPEC A4
    made = policy(dwell_s=0.0)
    serve(made, "req-0", A, 0, session="s")
    made.observe(Dispatched(5, llm("req-2", session="s"), B))
    made.observe(Ended(6, RequestId("req-2"), B, 0))
    assert order(made, view(A, queued_tokens=40), view(B), session="s") == [A, B]


def test_a_session_of_a_lost_replica_is_free() -> None:  # SPEC A4
    made = policy()
    serve(made, "req-0", A, 0, session="s")
    made.observe(Left(1, A))
    assert order(made, view(A, queued_tokens=40), view(B), session="s") == [B, A]


def test_sessions_of_two_tenants_are_two_sessions() -> None:
    made = policy()
    serve(made, "req-0", A, 0, session="s")
    assert order(made, view(A, queued_tokens=40), view(B), session="s", tenant="other") == [B, A]


def test_an_image_is_ranked_by_the_steps_ahead() -> None:
    image = DiffusionRequest(RequestId("req-1"), llm("x").tenant, llm("x").model, 8, 64, 64, 0, 0)
    ranked = policy().rank(image, [View(A, requests=3, step_ns=100), View(B, step_ns=100)], 0)
    assert [item.replica for item in ranked] == [B, A]


def test_a_second_of_decoding_weighs_less_than_one_before_the_first_token() -> None:
    light, full = (costs(policy(decode=weight), view(A))[A]["decode"] for weight in (0.3, 1.0))
    assert light == pytest.approx(0.3 * full)


def test_a_long_prompt_costs_its_attention_pairs() -> None:  # SPEC A2
    pairs = StepCoefficients(base_ns=10e6, row_ns=0.0, kv_ns=0.0, token_ns=0.1e6, pair_ns=100.0)
    short, long = (costs(policy(), view(A, step_cost=pairs), prompt=count)[A]["prefill"] for count in (100, 100_000))
    assert short == pytest.approx(0.1)
    assert long == pytest.approx(100_000 * 0.1e-3 + 100e-9 * 0.5 * 100_000**2)


def test_the_best_says_its_parts_in_words() -> None:  # SPEC L-5
    best = policy().rank(llm("req-1", prompt=100), [view(A, queued_tokens=50)], 0)[0]
    assert best.reason.startswith("queue 0.050 + prefill 0.100 + decode ")
    assert "others" not in best.reason  # nobody is there


def test_an_image_goes_where_replicas_say_that_the_least_work_is() -> None:  # SPEC F5, A2
    image = picture("req-1")
    short = View(A, requests=9, work_ns=NS_PER_S, denoise_cost=DENOISE)
    video = View(B, requests=1, work_ns=60 * NS_PER_S, denoise_cost=DENOISE)
    ranked = policy().rank(image, [video, short], 0)
    assert [item.replica for item in ranked] == [A, B]
    told = policy().explain(image, [video, short], 0)
    assert told[B]["queue"] == pytest.approx(60.0)
    assert sum(told[A].values()) == pytest.approx(ranked[0].score)
