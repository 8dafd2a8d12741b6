"""Exclusive segments add up to e2e (SPEC I2); fields that do not apply are None (CONTRACT, Evidence)."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.evidence import FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import NodeId, RequestId, TenantId

MS = 1_000_000


def front(**change: object) -> FrontMarks:
    base: dict[str, object] = {
        "request": RequestId("req-1"),
        "tenant": TenantId("default"),
        "received_ns": 100 * MS,
        "body_ns": 101 * MS,
        "arrived_ns": 103 * MS,
        "dispatched_ns": 104 * MS,
        "first_token_ns": 151 * MS,
        "last_token_ns": 200 * MS,
        "ended_ns": 202 * MS,
        "output_tokens": 5,
    }
    return FrontMarks(**(base | change))  # type: ignore[arg-type]  # built by field


def worker(**change: object) -> WorkerMarks:
    base: dict[str, object] = {
        "replica": NodeId("rep-0"),
        "received_ns": 105 * MS,
        "scheduled_ns": 110 * MS,
        "first_token_ns": 150 * MS,
        "last_token_ns": 198 * MS,
        "finished_ns": 198 * MS,
        "steps": 5,
        "host_ns": 10 * MS,
        "overlapped_ns": 4 * MS,
    }
    return WorkerMarks(**(base | change))  # type: ignore[arg-type]  # built by field


# SPEC I1, I2
def test_segments_are_cut_where_the_marks_say() -> None:
    record = evidence_record(front(), worker())
    assert record.segments == {
        "input_transfer": 1.0,
        "admission": 2.0,
        "gateway_queue": 1.0,
        "network_wait": 1.0 + 2.0,
        "engine_queue": 5.0,
        "prefill": 40.0,
        "decode": 48.0,
        "stream_output": 2.0,
    }
    assert (record.ttft_ms, record.e2e_ms, record.tpot_ms, record.overlap_ratio) == (51.0, 102.0, 12.0, 0.4)
    assert record.queue_wait_ms == 6.0


stamps = st.lists(st.integers(0, 10_000), min_size=10, max_size=10)


# SPEC I2
@given(
    at=stamps,
    preempted=st.integers(0, 3000),
    recompute=st.integers(0, 3000),
    handoff=st.integers(0, 3000),
    stored=st.integers(0, 3000),
    gaps=st.sets(st.integers(0, 6)),
)
def test_segments_add_up_to_e2e_whatever_is_missing_or_out_of_order(
    at: list[int], preempted: int, recompute: int, handoff: int, stored: int, gaps: set[int]
) -> None:
    received, body, arrived, dispatched, seen, scheduled, first, last, told, ended = at
    received, ended = min(at), max(at)
    marks = front(
        received_ns=received,
        body_ns=body,
        arrived_ns=arrived,
        dispatched_ns=None if 0 in gaps else dispatched,
        first_token_ns=None if 1 in gaps else first,
        last_token_ns=None if 2 in gaps else told,
        ended_ns=ended,
        stored_ns=stored,
    )
    stay = worker(
        received_ns=seen,
        scheduled_ns=None if 3 in gaps else scheduled,
        first_token_ns=None if 4 in gaps else first,
        last_token_ns=None if 5 in gaps else last,
        preempted_ns=preempted,
        recompute_ns=recompute,
        handoff_ns=handoff,
    )
    record = evidence_record(marks, None if 6 in gaps else stay)
    assert abs(sum(record.segments.values()) - record.e2e_ms) < 1e-6
    assert all(value >= 0 for value in record.segments.values())


def test_the_time_in_which_outputs_are_stored_is_upload_and_not_output_to_a_stream() -> None:
    # SPEC I2
    record = evidence_record(front(ended_ns=232 * MS, stored_ns=29 * MS), worker())
    assert (record.segments["upload"], record.segments["stream_output"], record.stream_output_ms) == (29.0, 3.0, 3.0)
    assert sum(record.segments.values()) == record.e2e_ms
    assert "upload" not in evidence_record(front(), worker()).segments  # nothing was


# SPEC I2
def test_recompute_comes_out_of_decode_and_never_enters_tpot() -> None:
    record = evidence_record(front(), worker(preempted_ns=10 * MS, recompute_ns=6 * MS))
    assert (record.segments["preempted"], record.segments["recompute"], record.segments["decode"]) == (10.0, 6.0, 32.0)
    assert record.tpot_ms == 8.0


def test_what_does_not_apply_is_none_and_what_was_measured_zero_is_zero() -> None:
    refused = evidence_record(front(dispatched_ns=None, first_token_ns=None, last_token_ns=None, output_tokens=0), None)
    assert refused.prefill_ms is None
    assert refused.tpot_ms is None
    assert refused.replica is None
    assert refused.handoff_ms is None
    assert refused.model_load_ms == 0.0
    one = evidence_record(front(output_tokens=1), worker(last_token_ns=150 * MS, finished_ns=150 * MS))
    assert one.tpot_ms is None
    assert evidence_record(front(), worker(host_ns=0)).overlap_ratio is None


def test_a_request_that_ended_within_its_first_step_tells_the_time_that_it_took_from_the_device() -> None:
    # SPEC H6, I1
    assert evidence_record(front(), worker(steps=0, device_ns=50_000_000)).device_ms == 50.0
    assert evidence_record(front(), worker(steps=0, device_ns=0)).device_ms is None


def test_model_load_is_a_segment_of_its_own() -> None:
    record = evidence_record(front(model_load_ns=40 * MS, dispatched_ns=144 * MS, cold_start=True), worker())
    assert record.segments["model_load"] == 40.0
    assert record.segments["gateway_queue"] == 1.0
    assert record.cold_start


# SPEC F8
def test_steps_of_a_shape_that_was_not_warm_make_a_request_cold() -> None:
    assert not evidence_record(front(), worker()).cold_start
    assert evidence_record(front(), worker(is_cold=True)).cold_start
