"""Evidence of our own server as a log of requests."""

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.core.evidence import FrontMarks, WorkerMarks, evidence_record
from headway.core.evidence_row import evidence_row
from headway.core.ids import NodeId, RequestId, TenantId
from headway.workload.evidence_logs import read_evidence

MS = 1_000_000


def line(number: int, replica: str = "rep-0", outcome: str = "ok", cached: int = 0) -> bytes:
    """A request as a server tells it: received at 10 ms, in the engine from 14 to 114 ms, its first token at 44."""
    at = 10 * number
    worker = WorkerMarks(
        NodeId(replica),
        received_ns=(at + 4) * MS,
        scheduled_ns=(at + 20) * MS,
        first_token_ns=(at + 44) * MS,
        last_token_ns=(at + 114) * MS,
        finished_ns=(at + 114) * MS,
        cached_tokens=cached,
    )
    front = FrontMarks(
        RequestId(f"req-{number}"),
        TenantId("t"),
        received_ns=at * MS,
        body_ns=(at + 1) * MS,
        arrived_ns=(at + 2) * MS,
        dispatched_ns=(at + 4) * MS,
        first_token_ns=(at + 45) * MS,
        last_token_ns=(at + 115) * MS,
        ended_ns=(at + 116) * MS,
        output_tokens=8 if outcome == "ok" else 0,
        outcome=outcome,
        prompt_tokens=100,
    )
    return msgspec.json.encode(evidence_row(evidence_record(front, worker))) + b"\n"


def test_a_request_is_the_engine_s_from_its_arrival_there_to_its_last_token() -> None:
    log = read_evidence(line(1) + line(0) + line(2, replica="rep-1"), "e.jsonl")
    assert (log.replica, log.left_out) == ("rep-0", 1)
    assert [(one.id, one.queued_ns, one.ttft_ns, one.e2e_ns) for one in log.requests] == [
        ("req-0", 0, 40 * MS, 110 * MS),
        ("req-1", 10 * MS, 40 * MS, 110 * MS),
    ]
    assert {(one.prompt_tokens, one.output_tokens) for one in log.requests} == {(100, 8)}


def test_too_many_requests_without_an_answer_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 of 3 requests of rep-0 did not end well"):
        read_evidence(line(0) + line(1) + line(2, outcome="error"), "e.jsonl")


# inference-sim#1273: a server's cache is warm, that of a replay is cold.
def test_prompts_that_a_cache_held_are_refused() -> None:
    with pytest.raises(ConfigError, match="64 of 200 prompt tokens"):
        read_evidence(line(0) + line(1, cached=64), "e.jsonl")


def test_a_line_that_is_no_evidence_is_named() -> None:
    with pytest.raises(ConfigError, match=r"e\.jsonl, line 2"):
        read_evidence(line(0) + b'{"segments": 3}', "e.jsonl")
