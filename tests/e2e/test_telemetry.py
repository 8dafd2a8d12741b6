"""What a running server tells: spans at a collector, records in a file, the log; and what it never tells."""

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from tests.e2e.serving import Server, serve

from headway.core.request import LlmRequest
from headway.workload.build import build
from headway.workload.mint import Served
from headway.workload.spec import Replay

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "b7ad6b7169203331"
KEY, PROMPT = "canary-key-91c4", "canary-prompt-57fe"


def ask(server: Server, prompt: str = PROMPT) -> None:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "synthetic", "messages": messages, "max_tokens": 6, "ignore_eos": True}
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {KEY}",
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        "x-request-id": "mine",
    }
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
        answer.read()


@contextlib.contextmanager
def telling(*assignments: str) -> Iterator[Server]:
    """A synthetic server with one key; ended in order at the end of the block."""
    digest = sha256(KEY.encode()).hexdigest()
    keys = f'auth.keys=[{{hash = "sha256:{digest}", tenant = "alice", admin = true}}]'
    flags = [part for one in (keys, *assignments) for part in ("--set", one)]
    here = os.environ.get("PYTHONPATH", "")  # extras may lie outside the environment
    with serve("--engine", "synthetic", "--verbose", *flags, PYTHONPATH=here) as server:
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_the_log_is_json_names_the_request_and_keeps_its_secrets(tmp_path: Path) -> None:
    # SPEC M2, M5, I4
    path = tmp_path / "evidence.jsonl"
    with telling("telemetry.log_format=json", f"telemetry.evidence_file={path}") as server:
        ask(server)
        server.call("/v1/chat/completions", {"model": PROMPT, "messages": [{"role": "user", "content": PROMPT}]})
    lines = [json.loads(line) for line in server.errors]
    assert all({"time", "level", "event", "logger"} <= set(line) for line in lines)
    (ended,) = [line for line in lines if line["event"] == "request ended"]
    assert (ended["trace_id"], ended["replica"], ended["tenant"], ended["outcome"]) == (TRACE, "rep-0", "alice", "ok")
    assert "mine" in ended["request"]
    told = "\n".join((*server.out, *server.errors))
    assert KEY not in told
    assert PROMPT not in told
    (record,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (record["request"], record["trace_id"]) == (ended["request"], TRACE)
    assert sum(record["segments"].values()) == pytest.approx(record["e2e_ms"], rel=0.01)
    assert KEY not in path.read_text()
    assert PROMPT not in path.read_text()


def test_what_a_server_has_recorded_can_be_simulated(tmp_path: Path) -> None:
    # SPEC J2, I4
    path = tmp_path / "evidence.jsonl"
    with telling(f"telemetry.evidence_file={path}") as server:
        for words in (1, 40, 7):
            ask(server, "word " * words)
    records = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["started_ms"])
    again = list(build([Replay(path=path.name)], 0, [Served("synthetic")], tmp_path).first())
    assert [item.output_tokens for item in again] == [6, 6, 6]
    assert [item.request.tenant for item in again] == ["alice"] * 3
    prompts = [item.request.prompt_tokens for item in again if isinstance(item.request, LlmRequest)]
    assert prompts == [row["prompt_tokens"] for row in records]
    assert prompts[0] < prompts[2] < prompts[1]
    for (one, other), (early, late) in zip(pairwise(again), pairwise(records), strict=True):
        gap_ms = (other.request.arrived_ns - one.request.arrived_ns) / 1e6
        assert gap_ms == pytest.approx(late["started_ms"] - early["started_ms"], abs=1e-3)


def test_a_request_reaches_the_collector_under_its_clients_span() -> None:
    # SPEC I4, M2
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from tests.unit.adapters.telemetry.collector import collector

    with collector() as kept:
        with telling(f"telemetry.otlp_endpoint={kept.url}") as server:
            ask(server)
        root, *parts = kept.spans
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert {part.parent_span_id for part in parts} == {root.span_id}
    assert {"prefill", "decode"} <= {part.name for part in parts}
    assert PROMPT not in str(kept.spans)
    assert KEY not in str(kept.spans)


def test_a_collector_that_is_down_costs_no_request() -> None:
    # SPEC I4
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with telling("telemetry.otlp_endpoint=http://127.0.0.1:1", "telemetry.export_waiting_max=1") as server:
        for _ in range(20):
            ask(server)
        metrics = server.call("/metrics")[1].decode()
        (lost,) = [line for line in metrics.splitlines() if line.startswith('headway_evidence_lost_total{sink="otlp"}')]
        assert float(lost.split()[-1]) > 0
