"""Readers of per-request logs."""

import pytest

from headway.core.errors import ConfigError
from headway.workload.request_logs import read_log_meta, read_request_log

LATE = b'{"request_id":"b","input_toks":7,"output_toks":2,"queued_ts":12.5,"first_token_ts":13.0,"last_token_ts":14.0}'
EARLY = b'{"request_id":"a","input_toks":5,"output_toks":3,"queued_ts":10.0,"first_token_ts":10.5,"last_token_ts":12.0}'


def test_requests_come_in_the_order_in_which_they_queued_from_time_zero() -> None:
    log = read_request_log(LATE + b"\n\n" + EARLY, "r.jsonl")
    assert [(one.id, one.queued_ns, one.ttft_ns, one.e2e_ns) for one in log] == [
        ("a", 0, 500_000_000, 2_000_000_000),
        ("b", 2_500_000_000, 500_000_000, 1_500_000_000),
    ]


def test_a_request_without_an_answer_is_named() -> None:
    broken = EARLY.replace(b'"first_token_ts":10.5', b'"first_token_ts":9.5')
    with pytest.raises(ConfigError, match=r"r\.jsonl, line 2: a has no first"):
        read_request_log(LATE + b"\n" + broken, "r.jsonl")


def test_a_line_of_something_else_is_named() -> None:
    with pytest.raises(ConfigError, match=r"r\.jsonl, line 1: .*request_id"):
        read_request_log(b"{}", "r.jsonl")


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        read_request_log(b"\n", "r.jsonl")


# vidur#60: which engine was measured must be known.
def test_meta_without_a_version_is_refused() -> None:
    assert (
        read_log_meta(b'{"vllm_version":"0.19.0","engine_kwargs":{"model":"m"}}', "meta.json").vllm_version == "0.19.0"
    )
    with pytest.raises(ConfigError, match="vllm_version"):
        read_log_meta(b'{"engine_kwargs":{"model":"m"}}', "meta.json")
