import msgspec
import pytest
from tests.unit.sched.router.views import llm

from headway.core.decisions import Candidate
from headway.core.ids import RequestId
from headway.core.request import LlmRequest, SamplingParams, Slo
from headway.core.units import NS_PER_MS, NS_PER_S, Ns, ns_from_ms
from headway.sched.admission.policies.predictive import Predictive
from headway.sched.admission.protocol import Began, Considered, Load, Outlook, Over, Verdict

BEST = Candidate("rep-a", seconds=0.2, confidence=0.9)
BUSY = Outlook(step_seconds=0.01, rows=4)
LOAD = Load(0, True, 0.0, 0.0, prefill_seconds=0.05, output_tokens=11, outlook=BUSY)
NEVER = {"shadow_share": 0.0}


def policy(**params: object) -> Predictive:
    return Predictive(msgspec.convert(NEVER | params, Predictive.Params))


def load(**change: object) -> Load:
    return msgspec.structs.replace(LOAD, **change)


def ask(request: LlmRequest, at: Load = LOAD, best: Candidate = BEST, guard: Predictive | None = None) -> Verdict:
    return (guard or policy()).decide(request, [best], at, 0)


def promised(ttft: float | None = None, tpot: float | None = None, e2e: float | None = None) -> LlmRequest:
    """A request with these promises in ms from time 0."""
    due = [None if ms is None else ns_from_ms(ms) for ms in (ttft, tpot, e2e)]
    return llm("req-1", slo=Slo(*due))


def test_admits_with_room_and_queues_without() -> None:  # SPEC A7
    assert ask(llm("req-1")).kind == "admit"
    assert ask(llm("req-1"), load(has_room=False)).kind == "queue"
    assert ask(llm("req-1"), load(queued=1)).kind == "queue"
    assert policy().decide(llm("req-1"), [], Load(0, False, 0.0, 0.0), 0).kind == "queue"


def test_a_retry_is_advised_only_where_a_smaller_batch_could_keep_the_pace() -> None:  # SPEC A7
    slow, never = ask(promised(tpot=9)), ask(promised(tpot=1))  # 10 ms beside four others: alone at least 2
    assert slow.error is not None
    assert never.error is not None
    assert (slow.error.waiting_helps, never.error.waiting_helps) == (True, False)


@pytest.mark.parametrize(
    ("at", "late", "kept"),
    [
        (LOAD, promised(ttft=199), promised(ttft=201)),
        (load(queue_seconds=0.3), promised(ttft=499), promised(ttft=501)),
        (load(outlook=Outlook(0.01, room_seconds=0.1)), promised(ttft=299), promised(ttft=301)),
        (LOAD, promised(tpot=9), promised(tpot=11)),
        (LOAD, promised(e2e=299), promised(e2e=301)),
    ],
    ids=["prefill", "queue", "room for its kv", "step then", "decode"],
)
def test_each_part_of_the_prediction_counts_against_the_slack(at: Load, late: LlmRequest, kept: LlmRequest) -> None:
    # SPEC A7
    refused = ask(late, at)
    assert refused.error is not None
    assert (refused.kind, refused.error.status, refused.error.code) == ("reject", 429, "slo_unattainable")
    assert ask(kept, at).kind == "admit"


def test_room_at_the_decode_replica_delays_the_end_and_not_the_first_token() -> None:  # SPEC A7, C3
    split = Candidate("rep-a", 0.2, 0.9, decode="rep-b")
    full = load(outlook=Outlook(0.01, room_seconds=0.1))
    assert ask(promised(ttft=201), full, split).kind == "admit"
    assert ask(promised(e2e=399), full, split).kind == "reject"
    assert ask(promised(e2e=401), full, split).kind == "admit"


def test_the_answer_says_what_was_predicted_and_whether_waiting_helps() -> None:  # SPEC A7
    error = ask(promised(ttft=150)).error
    assert error is not None
    assert "ttft is forecast 200 ms from now" in error.message
    assert "leaves 150 ms" in error.message
    assert (error.retry_after_ms, error.waiting_helps) == (50, True)
    hopeless = ask(promised(ttft=40)).error  # its own prefill takes 50 ms
    assert hopeless is not None
    assert not hopeless.waiting_helps


def test_a_cold_replica_is_always_admissible() -> None:  # aibrix#547: no metrics at cold start, unroutable
    guard = policy()
    assert guard.decide(promised(ttft=1, tpot=1, e2e=1), [], Load(0, False, 0.0, 0.0), 0).kind == "queue"
    silent = Load(0, True, 0.0, 0.0, outlook=Outlook(is_idle=True))
    assert guard.decide(promised(ttft=1, tpot=1, e2e=1), [Candidate("rep-a", 0.0, 0.0)], silent, 0).kind == "admit"


def test_an_idle_replica_is_refused_only_to_what_a_much_better_forecast_would_refuse_too() -> None:  # dynamo#7753
    idle = load(outlook=Outlook(0.04, is_idle=True))  # 50 ms to the first token, 450 ms to the last
    assert ask(promised(ttft=26, tpot=21, e2e=226), idle).kind == "admit"
    for hopeless in (promised(ttft=24), promised(tpot=19), promised(e2e=224)):
        refused = ask(hopeless, idle)
        assert refused.error is not None
        assert (refused.kind, refused.error.waiting_helps) == ("reject", False)


def test_an_unsure_forecast_refuses_nobody() -> None:
    assert ask(promised(ttft=1), best=Candidate("rep-a", 9.0, 0.4)).kind == "admit"


def test_beyond_the_watermark_only_those_with_a_promise_may_wait() -> None:  # SPEC A7
    guard = policy(queue_max=10, queue_watermark=0.8)
    assert ask(llm("req-1"), load(queued=7), guard=guard).kind == "queue"
    limited = ask(llm("req-1"), load(queued=8), guard=guard)
    assert limited.error is not None
    assert (limited.kind, limited.error.code) == ("reject", "queue_full")
    assert ask(promised(ttft=900), load(queued=9), guard=guard).kind == "queue"
    assert ask(promised(ttft=900), load(queued=10), guard=guard).kind == "reject"


def test_a_fewer_tokens_answer_where_that_is_allowed() -> None:  # SPEC A7
    asked = msgspec.structs.replace(promised(e2e=1200), sampling=SamplingParams(max_tokens=400))
    slow = load(output_tokens=400)
    assert ask(asked, slow).kind == "reject"
    allowed = msgspec.structs.replace(asked, allow_degrade=("max_tokens",))
    verdict = ask(allowed, slow)
    assert (verdict.kind, verdict.left, verdict.error) == (
        "degrade",
        (("max_tokens", 101),),
        None,
    )  # 200 ms and 100 steps of 10 ms
    assert ask(allowed, slow, guard=policy(degrade_tokens_min=102)).kind == "reject"


def test_asks_for_more_replicas_when_the_wait_takes_half_the_slo() -> None:  # SPEC A7, A12
    guard = policy()
    asked = ask(promised(ttft=1000), load(queue_seconds=0.4), guard=guard)
    assert (asked.kind, asked.asks_scale_out) == ("admit", True)  # 0.55 s of wait before 0.05 s of prefill
    assert not ask(promised(ttft=1200), load(queue_seconds=0.4), guard=guard).asks_scale_out
    guard.observe(Considered(0, llm("req-1"), asked))
    assert not ask(promised(ttft=1000), load(queue_seconds=0.4), guard=guard).asks_scale_out
    later = guard.decide(promised(ttft=2000), [BEST], load(queue_seconds=1.2), NS_PER_S)
    assert later.asks_scale_out


def serve(guard: Predictive, name: str, slo: Slo, first_ms: int, last_ms: int, at_ns: Ns = 0) -> Verdict:
    """A request that gets its first token and 10 more at these times, if it is let in."""
    request = llm(name, slo=slo)
    verdict = guard.decide(request, [BEST], LOAD, at_ns)
    guard.observe(Considered(at_ns, request, verdict))
    if verdict.kind != "reject":
        guard.observe(Began(at_ns + first_ms * NS_PER_MS, request.id))
        guard.observe(Over(at_ns + last_ms * NS_PER_MS, request.id, 11, "done"))
    return verdict


def test_learns_how_far_its_forecasts_are_off() -> None:  # SPEC A7
    guard = policy(quantile_step=0.0)
    for number in range(30):
        serve(guard, f"req-{number}", Slo(), first_ms=400, last_ms=600)  # forecast: 200 ms, and 10 ms per token
    refused = ask(promised(ttft=300), guard=guard)
    assert "ttft 400 ms" in refused.reason
    assert ask(promised(tpot=15), guard=guard).kind == "reject"
    (figures,) = guard.figures()
    assert figures.model == "synthetic"
    assert dict(figures.coverage)["ttft"] == 10 / 30  # late as long as the forecast counted as it was


def test_a_sample_of_the_refused_runs_and_moves_the_quantile() -> None:  # SPEC A7
    """A predictor that sees twice what is true heals itself: every refusal that runs shows that it was false."""
    guard = policy(shadow_share=0.5, samples_min=1000)
    verdicts = [serve(guard, f"req-{n}", Slo(ttft_deadline_ns=150 * NS_PER_MS), 100, 200) for n in range(100)]
    shadows = [verdict for verdict in verdicts if verdict.is_shadow]
    assert 30 < len(shadows) < 70
    assert {verdict.kind for verdict in verdicts if not verdict.is_shadow} == {"reject"}
    (figures,) = guard.figures()
    assert (figures.false_rejects, figures.shadows) == (1.0, len(shadows))
    assert figures.quantile < 0.6
    assert "to judge the refusals" in shadows[0].reason


def test_no_refusal_latches() -> None:  # dynamo#10564: the overload latch never clears, 503 for ever
    """However wrong the learned ratios are, the sample brings them back and then everybody is let in again."""
    guard = policy(shadow_share=0.1, window=50)
    for number in range(60):
        serve(guard, f"slow-{number}", Slo(), first_ms=5000, last_ms=6000)
    slo = Slo(ttft_deadline_ns=NS_PER_S)
    kinds = [serve(guard, f"req-{n}", slo, 150, 260).is_shadow for n in range(900)]
    assert any(kinds[:500])
    assert ask(promised(ttft=1000), guard=guard).kind == "admit"


def test_a_client_that_leaves_teaches_nothing_and_is_forgotten() -> None:
    guard = policy()
    request = promised(ttft=900)
    guard.observe(Considered(0, request, guard.decide(request, [BEST], LOAD, 0)))
    guard.observe(Over(NS_PER_S, request.id, 0, "lost"))
    guard.observe(Over(NS_PER_S, RequestId("req-unknown"), 0, "done"))
    assert guard.figures() == []
    assert guard._open == {}


def test_a_deadline_that_killed_it_counts_as_not_covered() -> None:  # SPEC A7
    guard = policy()
    request = promised(e2e=2000)
    guard.observe(Considered(0, request, guard.decide(request, [BEST], LOAD, 0)))
    guard.observe(Over(2 * NS_PER_S, request.id, 0, "late"))
    (figures,) = guard.figures()
    assert dict(figures.coverage) == {"ttft": 0.0, "tpot": None, "e2e": 0.0}


def test_an_idle_replica_is_asked_for_fewer_tokens_too() -> None:  # SPEC A7
    idle = load(outlook=Outlook(0.01, is_idle=True), output_tokens=400)
    asked = msgspec.structs.replace(
        promised(e2e=1200), sampling=SamplingParams(max_tokens=400), allow_degrade=("max_tokens",)
    )
    verdict = ask(asked, idle)
    assert (verdict.kind, verdict.left) == ("degrade", (("max_tokens", 101),))
