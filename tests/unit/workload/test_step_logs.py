"""Readers of measured steps."""

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.core.step_record import StepRecord
from headway.workload.step_logs import read_steps, read_table

STEP = StepRecord("rep-1", 3, "mixed", 4, 400, 64, 2080, 1, 64, 5, 6, 70)


def test_lines_read_back_as_they_were_written() -> None:
    content = msgspec.json.encode(STEP) + b"\n\n" + msgspec.json.encode(STEP)
    assert read_steps(content, "s.jsonl") == [STEP, STEP]


def test_a_line_that_is_no_step_is_named() -> None:
    with pytest.raises(ConfigError, match=r"s.jsonl, line 2: .*decodes"):
        read_steps(msgspec.json.encode(STEP) + b'\n{"replica": "r", "step": 1, "kind": "mixed"}', "s.jsonl")


def test_a_table_of_batch_tokens_and_time_becomes_steps() -> None:
    rows = read_table(b"batch,context,tokens,time_ms\n8,100,0,12.5\n0,,512,40\n4,50,64,20\n", "t.csv")
    assert [
        (r.kind, r.decodes, r.kv_tokens, r.prefill_tokens, r.prefill_pairs, r.chunks, r.done_ns - r.launched_ns)
        for r in rows
    ] == [
        ("decode", 8, 800, 0, 0, 0, 12_500_000),
        ("prefill", 0, 0, 512, 512 * 513 // 2, 1, 40_000_000),
        ("mixed", 4, 200, 64, 64 * 65 // 2, 1, 20_000_000),
    ]


# vidur#72: what a table measured and a model does not see turns into unexplained error.
def test_a_column_that_nothing_would_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="gpu_clock"):
        read_table(b"batch,gpu_clock,time_ms\n1,1500,3\n", "t.csv")


def test_two_times_are_refused() -> None:
    with pytest.raises(ConfigError, match="one of time_ns"):
        read_table(b"batch,time_ms,time_s\n1,1500,3\n", "t.csv")


@pytest.mark.parametrize("row", [b"1,0", b"-1,3", b"x,3"])
def test_a_row_that_cannot_be_is_named(row: bytes) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv, line 2"):
        read_table(b"batch,time_ms\n" + row + b"\n", "t.csv")
