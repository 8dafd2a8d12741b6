import pytest
from msgspec.structs import replace

from headway.adapters.gateway.ports import Estimate
from headway.core.decisions import Explained, Explanation, Lessened
from headway.core.errors import CapacityError
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Report
from headway.core.ports import ModelLimits
from headway.core.reports import DenoiseCoefficients, DenoiseMemory, ReplicaReport, StepCoefficients, WarmShape
from headway.core.request import DiffusionRequest, LlmRequest, SamplingParams, Slo
from headway.core.units import NS_PER_MS
from headway.live.board import Board
from headway.live.estimates import OUTPUT_TOKENS_UNKNOWN, estimate, foresee
from headway.live.stores import TelemetrySettings, Timeline, write_trace
from headway.live.wire import Phase, Ready
from headway.sched.router.cost_terms import Weights

A, B, MODEL = NodeId("rep-a"), NodeId("rep-b"), ModelId("m")
NO_SLO = Slo()
LIMITS = ModelLimits("m", 100, 1024, 16, 64, 1000, 0, 1, (), "f", "d")
ADMIT = Explanation(MODEL, "p", 0, 1, "admit", "", ())
COST = StepCoefficients(base_ns=NS_PER_MS, row_ns=10_000.0, kv_ns=10.0, token_ns=20_000.0, pair_ns=0.0)


def board(*present: NodeId) -> Board:
    made = Board({A: "m", B: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)
    for node in present:
        made.joined(node, 1, Ready(LIMITS, 5, COST))
    return made


def report(node: NodeId, incarnation: int = 1, waiting: int = 0, running: int = 0, queued: int = 0) -> Report:
    return Report(
        ReplicaReport(node, incarnation, 1, 0, "llm", "m", waiting, running, queued, running * 100, 64, 64, 0)
    )


def request(prompt: int = 10, max_tokens: int = 5, slo: Slo = NO_SLO) -> LlmRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return LlmRequest(RequestId("req-1"), TenantId("t"), MODEL, (1,) * prompt, sampling, 0, slo)


def test_alone_the_first_token_costs_one_step_with_the_prompt() -> None:
    # SPEC A7
    found = estimate(request(prompt=10), board(A), ADMIT)
    assert found.ttft_ns == NS_PER_MS + 10 * 20_000
    assert found.verdict == "admit"


def test_more_tokens_cost_more_device_time() -> None:
    few, many = (estimate(request(max_tokens=n), board(A), ADMIT) for n in (8, 400))
    assert 0 < few.device_seconds < many.device_seconds


def test_the_replica_with_the_shorter_queue_counts() -> None:
    both = board(A, B)
    both.heard(A, report(A, waiting=3, queued=5000))
    assert estimate(request(), both, ADMIT).ttft_ns < estimate(request(), only_a(), ADMIT).ttft_ns


def only_a() -> Board:
    one = board(A)
    one.heard(A, report(A, waiting=3, queued=5000))
    return one


def test_the_verdict_is_admissions_own() -> None:
    # SPEC A7
    found = [estimate(request(), board(A), replace(ADMIT, verdict=verdict)) for verdict in ("queue", "degrade")]
    assert [one.verdict for one in found] == ["queue", "degrade"]


def test_what_no_replica_can_hold_is_a_reject_whatever_waits() -> None:
    assert estimate(request(max_tokens=2000), board(A), ADMIT).verdict == "reject"


def test_kv_covers_prompt_and_output_in_whole_blocks() -> None:
    assert estimate(request(prompt=10, max_tokens=7), board(A), ADMIT).kv_bytes == 2 * 1000


def test_output_is_priced_as_long_as_is_likely_and_its_limit_beside_it() -> None:
    # SPEC A7, H6
    def found(likely: int | None, limit: int) -> Estimate:
        return estimate(request(max_tokens=limit), board(A), replace(ADMIT, output_tokens_likely=likely))

    assert [found(*each).output_tokens for each in ((None, 900), (None, 50), (30, 900), (30, 20), (0, 900))] == [
        OUTPUT_TOKENS_UNKNOWN,
        50,
        30,
        20,
        1,
    ]
    likely, forced = found(30, 900), found(900, 900)
    assert likely.device_seconds == found(None, 30).device_seconds < likely.device_seconds_max
    assert likely.device_seconds_max == forced.device_seconds == forced.device_seconds_max
    assert found(30, 900).kv_bytes == found(None, 30).kv_bytes


def test_too_large_is_judged_by_the_limit_whatever_is_likely() -> None:
    # SPEC A7
    assert estimate(request(max_tokens=2000), board(A), replace(ADMIT, output_tokens_likely=1)).verdict == "reject"


def test_an_unknown_length_is_as_long_as_the_router_takes_it() -> None:
    assert Weights().output_tokens == OUTPUT_TOKENS_UNKNOWN


def test_without_a_replica_there_is_no_estimate() -> None:
    with pytest.raises(CapacityError, match="no replica of m"):
        estimate(request(), board(), ADMIT)


def test_what_a_replica_tells_of_its_steps_corrects_what_its_warm_up_told() -> None:
    # SPEC A7
    known = board(A)
    before = estimate(request(), known, ADMIT).tpot_ns
    known.heard(A, Report(replace(report(A).report, step_cost=replace(COST, base_ns=10.0 * NS_PER_MS))))
    after = estimate(request(), known, ADMIT).tpot_ns
    assert after - before == 9 * NS_PER_MS


# SPEC A7
def test_the_time_to_the_first_token_is_what_the_router_forecasts_where_it_would_go() -> None:
    seen = (
        Explained(B, 0, "", 1.0, 0.07, 1.0, {}, 0, has_room=True),
        Explained(A, 1, "", 2.0, 0.05, 1.0, {}, 0, has_room=True),
    )
    assert estimate(request(), board(A, B), replace(ADMIT, replicas=seen)).ttft_ns == 70 * NS_PER_MS
    assert estimate(request(), board(A), replace(ADMIT, replicas=seen)).ttft_ns == 50 * NS_PER_MS


def test_a_report_of_an_earlier_incarnation_is_not_kept() -> None:
    known = board(A)
    known.lost(A, 1, "killed")
    known.heard(A, report(A, 1))
    assert known.replicas[A].report is None
    assert known.serving("m") == []


def test_phases_of_loading_are_told_and_kept_for_the_trace() -> None:
    # SPEC A13
    lines: list[str] = []
    timeline = Timeline(TelemetrySettings())
    loading = Board({A: "m"}, timeline, lambda node, line: lines.append(f"{node} {line}"))
    loading.phase(A, Phase("load", 0.0, 100, "64 blocks"))
    loading.phase(A, Phase("load", 1.0, 5_100, "done in float32"))
    assert lines == ["rep-a load: 64 blocks", "rep-a done in float32"]
    assert b'"name":"load","ph":"X","pid":1,"tid":1,"ts":0.0,"dur":5.0' in write_trace(timeline.since(0), [], 0)


def test_an_estimate_is_of_what_would_run_after_admission_took_something_away() -> None:
    # SPEC F2, H6
    made = Board({A: "m", B: "fast"}, Timeline(TelemetrySettings()), lambda node, line: None)
    for node, model, token_ns in ((A, "m", 1e6), (B, "fast", 1e5)):
        made.joined(node, 1, Ready(LIMITS, 5))
        told = ReplicaReport(node, 1, 1, 0, "diffusion", model, 0, 0, 0, 0, 0, 0, 0)
        made.heard(node, Report(replace(told, denoise_cost=DenoiseCoefficients(0.0, 0.0, token_ns, 0.0))))
    asked = DiffusionRequest(RequestId("img-1"), TenantId("t"), MODEL, 10, 64, 64, 7, 0)

    def foreseen(*left: tuple[Lessened, int | str]) -> tuple[float, dict[str, int | str]]:
        explained = Explanation(MODEL, "p", 0, 0, "degrade" if left else "admit", "", (), left)
        found = foresee(asked, made, explained)
        assert found is not None
        return found.gpu_seconds, found.degraded

    whole, nothing = foreseen()
    assert nothing == {}
    assert foreseen(("steps", 5)) == (pytest.approx(whole / 2), {"steps": 5})
    assert foreseen(("model", "fast"), ("steps", 5)) == (pytest.approx(whole / 20), {"model": "fast", "steps": 5})


def test_an_estimate_of_a_picture_tells_its_memory_where_its_replica_does() -> None:
    # SPEC F2
    made = Board({A: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)
    made.joined(A, 1, Ready(LIMITS, 5))
    cost, memory = DenoiseCoefficients(0.0, 0.0, 1e6, 0.0), DenoiseMemory(7.0, 0.0, 0.0, 0.0, 0.0, 3.0, room=1)
    told = ReplicaReport(A, 1, 1, 0, "diffusion", "m", 0, 0, 0, 0, 0, 0, 0, denoise_cost=cost)
    asked = DiffusionRequest(RequestId("img-1"), TenantId("t"), MODEL, 10, 64, 64, 7, 0, n=2)
    explained = Explanation(MODEL, "p", 0, 0, "reject", "memory", (), unservable="it needs more")
    for number, (tells, expected) in enumerate(((None, None), (memory, 7 + 3 * 2 * 64 * 64)), start=1):
        made.heard(A, Report(replace(told, number=number, denoise_memory=tells)))
        found = foresee(asked, made, explained)
        assert found is not None
        assert (found.memory_bytes, found.unservable, found.verdict) == (expected, "it needs more", "reject")


# SPEC F2, F8
def test_an_estimate_of_a_shape_that_has_not_run_has_its_first_run() -> None:
    made = Board({A: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)
    made.joined(A, 1, Ready(LIMITS, 5))
    cost = DenoiseCoefficients(0.0, 0.0, 1e6, 0.0, first_ns=3e9, devices=2)
    told = ReplicaReport(A, 1, 1, 0, "diffusion", "m", 0, 0, 0, 0, 0, 0, 0, denoise_cost=cost)
    asked = DiffusionRequest(RequestId("img-1"), TenantId("t"), MODEL, 10, 64, 64, 7, 0)
    seen = []
    for number, warm in enumerate(((WarmShape(64, 64, 1, 1),), (WarmShape(64, 96, 1, 1),)), start=1):
        made.heard(A, Report(replace(told, number=number, warm=warm)))
        found = foresee(asked, made, Explanation(MODEL, "p", 0, 0, "admit", "", ()))
        assert found is not None
        seen.append(found)
    warmed, cold = seen
    assert (warmed.is_cold, cold.is_cold) == (False, True)
    assert cold.eta_s - warmed.eta_s == pytest.approx(3.0 + 2 * 16 * 1e-3)  # two steps more
    assert cold.gpu_seconds == warmed.gpu_seconds  # at the replica's own expense
