from itertools import pairwise

import msgspec
import pytest

from headway.adapters.telemetry.metrics import BUCKETS_S, Metrics, Scrape
from headway.core.evidence import EvidenceRecord, FrontMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.reports import (
    AdmissionFigures,
    GarbageFigures,
    PoolFigures,
    PrefixFigures,
    ReplicaFigures,
    ReplicaReport,
    ShapeMoveFigures,
)

CONTRACT_NAMES = [
    "headway_request_ttft_seconds",
    "headway_request_tpot_seconds",
    "headway_request_e2e_seconds",
    "headway_request_queue_seconds",
    "headway_requests_running",
    "headway_requests_waiting",
    "headway_requests_total",
    "headway_kv_blocks_used",
    "headway_kv_blocks_total",
    "headway_prefix_cache_hit_tokens_total",
    "headway_prefix_cache_query_tokens_total",
    "headway_prompt_tokens_total",
    "headway_generation_tokens_total",
    "headway_preemptions_total",
    "headway_scheduler_step_seconds",
    "headway_admission_total",
    "headway_gpu_seconds_total",
    "headway_jobs",
]
COUNTERS = (
    ("prefix_hit_tokens", 32),
    ("prefix_query_tokens", 64),
    ("preemptions", 2),
    ("image_cache_hits", 3),
    ("text_cache_hits", 4),
    ("step_rows", 40),
    ("step_padded_rows", 10),
    ("steps", 4),
    ("step_ns", 10**9),
)
REPORT = ReplicaReport(NodeId("rep-0"), 1, 1, 0, "llm", "toy", 2, 3, 0, 0, 60, 64, 0, counters=COUNTERS)
SCRAPE = Scrape(
    (REPORT,),
    waiting=5,
    admissions=(("admit", 7), ("reject", 1)),
    exports_lost=(("otlp", 3),),
    recoveries=(("retried", 4),),
    replicas=(ReplicaFigures(NodeId("rep-0"), "ready"), ReplicaFigures(NodeId("up-a"), "ready", breaker="open")),
    prefixes=(PrefixFigures("toy", 8, 2, predicted_tokens=640, reported_tokens=512, over_tokens=192, under_tokens=64),),
)


def samples(metrics: Metrics) -> dict[str, float]:
    text = metrics.render().decode()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


def record(**fields: object) -> EvidenceRecord:
    marks = FrontMarks(RequestId("req-1"), TenantId("a"), 0, 0, 0, None, None, None, 10**9, 0)
    return msgspec.structs.replace(evidence_record(marks, None), **fields)


def test_every_name_of_the_contract_is_there() -> None:
    # SPEC M2
    text = Metrics(lambda: SCRAPE).render().decode()
    assert [name for name in CONTRACT_NAMES if f"# TYPE {name} " not in text] == []


def test_device_time_counts_for_the_tenant_and_the_model_that_ran() -> None:
    # SPEC M2: two models of one tenant are two series, and no label joins their names
    metrics = Metrics(lambda: SCRAPE)
    for model, device_ms in (("llm", 1500.0), ("tiny-flux", 250.0), ("llm", 500.0)):
        metrics.observe(record(model=ModelId(model), device_ms=device_ms))
    metrics.observe(record(model=ModelId("llm"), tenant=TenantId("b"), device_ms=125.0))
    metrics.observe(record(model=ModelId("relayed"), device_ms=None))  # no engine of ours ran it
    got = {key: value for key, value in samples(metrics).items() if "gpu_seconds" in key}
    assert got == {
        'headway_gpu_seconds_total{model="llm",tenant="a"}': 2.0,
        'headway_gpu_seconds_total{model="tiny-flux",tenant="a"}': 0.25,
        'headway_gpu_seconds_total{model="llm",tenant="b"}': 0.125,
    }


def test_buckets_go_from_1_ms_to_60_s_by_even_factors() -> None:
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.001, 60.0)
    ratios = [b / a for a, b in pairwise(BUCKETS_S)]
    assert all(1.45 <= ratio <= 1.65 for ratio in ratios)


def test_records_become_observations_and_outcomes() -> None:
    metrics = Metrics(lambda: SCRAPE)
    metrics.observe(record(outcome="ok", ttft_ms=3.0, tpot_ms=None))
    got = samples(metrics)
    assert got['headway_requests_total{outcome="ok"}'] == 1
    assert got['headway_request_ttft_seconds_sum{cold="false"}'] == pytest.approx(0.003)
    assert got['headway_request_ttft_seconds_bucket{cold="false",le="0.0025"}'] == 0
    assert got['headway_request_ttft_seconds_bucket{cold="false",le="0.004"}'] == 1
    assert got['headway_request_tpot_seconds_count{cold="false"}'] == 0
    assert got['headway_request_e2e_seconds_sum{cold="false"}'] == 1


def test_cold_requests_are_a_class_of_their_own() -> None:
    # SPEC I2
    metrics = Metrics(lambda: SCRAPE)
    metrics.observe(record(cold_start=True))
    got = samples(metrics)
    assert got['headway_request_e2e_seconds_count{cold="true"}'] == 1
    assert got['headway_request_e2e_seconds_count{cold="false"}'] == 0


def test_reports_become_gauges_and_counters() -> None:
    got = samples(Metrics(lambda: SCRAPE))
    assert got['headway_requests_running{replica="rep-0"}'] == 3
    assert got['headway_requests_waiting{replica="rep-0"}'] == 2
    assert got['headway_requests_waiting{replica="gateway"}'] == 5
    assert got['headway_kv_blocks_used{replica="rep-0"}'] == 4
    assert got['headway_prefix_cache_hit_tokens_total{replica="rep-0"}'] == 32
    assert got['headway_preemptions_total{replica="rep-0"}'] == 2
    assert got['headway_image_embedding_hits_total{replica="rep-0"}'] == 3
    assert got['headway_text_embedding_hits_total{replica="rep-0"}'] == 4
    assert got['headway_step_rows_total{replica="rep-0"}'] == 40  # SPEC E1
    assert got['headway_step_padded_rows_total{replica="rep-0"}'] == 10
    assert got['headway_scheduler_step_seconds_sum{replica="rep-0"}'] == 1
    assert got['headway_admission_total{verdict="reject"}'] == 1


def test_failures_and_who_may_be_used_are_told() -> None:  # SPEC A11
    got = samples(Metrics(lambda: SCRAPE))
    assert got['headway_recovery_total{event="retried"}'] == 4
    assert got['headway_replica_usable{replica="rep-0"}'] == 1
    assert got['headway_replica_usable{replica="up-a"}'] == 0


def test_pauses_of_garbage_collectors_are_told_where_a_replica_told_them() -> None:
    told = ReplicaFigures(NodeId("rep-0"), "ready", garbage=GarbageFigures(40, 10**9, 2, 10**8, 6 * 10**7))
    got = samples(Metrics(lambda: Scrape(replicas=(told, ReplicaFigures(NodeId("up-a"), "ready")))))
    assert {name: value for name, value in got.items() if name.startswith("headway_gc_")} == {
        'headway_gc_pause_seconds_count{generation="young",replica="rep-0"}': 40,
        'headway_gc_pause_seconds_sum{generation="young",replica="rep-0"}': 1.0,
        'headway_gc_pause_seconds_count{generation="full",replica="rep-0"}': 2,
        'headway_gc_pause_seconds_sum{generation="full",replica="rep-0"}': 0.1,
        'headway_gc_pause_longest_seconds{replica="rep-0"}': 0.06,
    }


def test_how_the_memory_of_a_device_came_to_rest_is_told_where_a_replica_told_it() -> None:  # SPEC E1
    gpu = ReplicaFigures(NodeId("rep-0"), "ready", settle_passes=2, reserved_bytes=640)
    cpu = ReplicaFigures(NodeId("rep-1"), "ready", settle_passes=0)
    got = samples(Metrics(lambda: Scrape(replicas=(gpu, cpu, ReplicaFigures(NodeId("up-a"), "ready")))))
    told = ("headway_replica_settle", "headway_replica_reserved")
    assert {name: value for name, value in got.items() if name.startswith(told)} == {
        'headway_replica_settle_passes{replica="rep-0"}': 2,
        'headway_replica_settle_passes{replica="rep-1"}': 0,
        'headway_replica_reserved_bytes{replica="rep-0"}': 640,
    }


def test_predicted_and_reported_cached_tokens_are_told_by_model() -> None:  # AMD-AGI/Infera#143
    got = samples(Metrics(lambda: SCRAPE))
    assert got['headway_prefix_predicted_tokens_total{model="toy"}'] == 640
    assert got['headway_prefix_reported_tokens_total{model="toy"}'] == 512
    assert got['headway_prefix_overpredicted_tokens_total{model="toy"}'] == 192
    assert got['headway_prefix_underpredicted_tokens_total{model="toy"}'] == 64
    assert got['headway_prefix_dispatches_total{hashed="true",model="toy"}'] == 6
    assert got['headway_prefix_dispatches_total{hashed="false",model="toy"}'] == 2


def test_admissions_predictions_are_told_as_far_as_they_are_known() -> None:
    # SPEC A7
    figures = (
        AdmissionFigures("m", 0.8, (("ttft", 0.9), ("e2e", None)), 0.25, 4),
        AdmissionFigures("n", 0.7, (), None),
    )
    got = samples(Metrics(lambda: Scrape(predictions=figures)))
    assert got['headway_admission_prediction_coverage{model="m",promise="ttft"}'] == 0.9
    assert got['headway_admission_false_reject_ratio{model="m"}'] == 0.25
    assert got['headway_admission_quantile{model="n"}'] == 0.7
    assert not [name for name in got if "e2e" in name and "coverage" in name]
    assert 'headway_admission_false_reject_ratio{model="n"}' not in got


def test_records_that_a_sink_lost_are_told() -> None:
    # SPEC I4
    assert samples(Metrics(lambda: SCRAPE))['headway_evidence_lost_total{sink="otlp"}'] == 3


def test_jobs_are_told_by_state() -> None:
    scrape = msgspec.structs.replace(SCRAPE, jobs=(("completed", 4), ("queued", 2)), held=("wan",))
    scrape = msgspec.structs.replace(scrape, webhooks=(("given_up", 3),))
    got = samples(Metrics(lambda: scrape))
    assert got['headway_queue_paused{model="wan"}'] == 1
    assert got['headway_webhook_deliveries_total{outcome="given_up"}'] == 3
    assert (got['headway_jobs{state="completed"}'], got['headway_jobs{state="queued"}']) == (4, 2)


def test_moves_between_shape_pools_are_counted_by_how_they_ended() -> None:  # SPEC F5
    moves = (ShapeMoveFigures("wan", "moved", 3), ShapeMoveFigures("wan", "failed", 1))
    got = samples(Metrics(lambda: msgspec.structs.replace(SCRAPE, shape_moves=moves)))
    assert got['headway_shape_moves_total{model="wan",outcome="moved"}'] == 3
    assert got['headway_shape_moves_total{model="wan",outcome="failed"}'] == 1


def test_vllms_names_tell_the_same() -> None:
    metrics = Metrics(lambda: SCRAPE, vllm_aliases=True)
    metrics.generated_tokens("toy", 9)
    metrics.prompt_tokens("toy", 4)
    metrics.observe(record(ttft_ms=3.0))
    got = samples(metrics)
    assert got["vllm:num_requests_running"] == 3
    assert got["vllm:num_requests_waiting"] == 7
    assert got["vllm:kv_cache_usage_perc"] == pytest.approx(4 / 64)
    assert got["vllm:prefix_cache_hits_total"] == 32
    assert got['vllm:generation_tokens_total{model="toy"}'] == 9
    assert got['vllm:prompt_tokens_total{model="toy"}'] == 4
    assert got['vllm:time_to_first_token_seconds_count{cold="false"}'] == 1
    assert got['vllm:time_to_first_token_seconds_bucket{cold="false",le="0.004"}'] == 1


def test_without_replicas_the_queue_is_still_told() -> None:
    assert samples(Metrics(lambda: Scrape(waiting=2)))['headway_requests_waiting{replica="gateway"}'] == 2


def test_pools_tell_what_they_have_and_should_have() -> None:
    # SPEC A12
    pools = (PoolFigures("toy", "prefill", 2, 3, 9, 0.5, 1.5),)
    got = samples(Metrics(lambda: Scrape(pools=pools)))
    labels = '{model="toy",pool="prefill"}'
    assert got[f"headway_pool_replicas{labels}"] == 2
    assert got[f"headway_pool_replicas_wanted{labels}"] == 3
    assert got[f"headway_pool_expected_wait_seconds{labels}"] == 0.5
    assert got[f"headway_pool_predicted_wait_seconds{labels}"] == 1.5
