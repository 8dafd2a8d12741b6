import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.unit.bench.ended import end, simulated

from headway.adapters.telemetry.jsonl import evidence_lines
from headway.bench.ends import CLIENT_COLUMNS, request_columns
from headway.bench.outcome import Outcome
from headway.bench.results import (
    RequestsFormat,
    RunWriter,
    Tally,
    read_decisions,
    read_requests,
    read_run,
    read_scenario_tree,
    read_series,
    read_summary,
)
from headway.bench.run_summary import Closing, OpenRequest
from headway.bench.summary import Summary, Targets, summarise
from headway.core.errors import ConfigError

CLOSING = Closing(virtual_s=2.0, seed=7, config_hash="abc")
FORMATS: tuple[RequestsFormat, ...] = ("parquet", "jsonl")


@pytest.mark.parametrize("shape", FORMATS)
def test_a_row_has_the_fields_of_the_servers_export_and_their_values(tmp_path: Path, shape: RequestsFormat) -> None:
    # SPEC I4  inference-sim#962: one code path for server and simulator
    if shape == "parquet":
        pytest.importorskip("pyarrow")
    _, ends = simulated()
    with RunWriter(tmp_path / "run", b"{}", shape) as writer:
        for item in ends:
            writer.ended(item)
    exported = [msgspec.json.decode(line) for line in evidence_lines(item.evidence for item in ends).splitlines()]
    found = read_requests(tmp_path / "run", list(exported[0]))
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    assert [row | {"segments": dict(row["segments"])} for row in rows] == exported
    assert set(request_columns()) == set(exported[0]) | set(CLIENT_COLUMNS)


@pytest.mark.parametrize("shape", FORMATS)
def test_what_is_read_again_has_the_same_summary(tmp_path: Path, shape: RequestsFormat) -> None:
    if shape == "parquet":
        pytest.importorskip("pyarrow")
    _, ends = simulated()
    with RunWriter(tmp_path / "run", b'{"fleet":{"replicas":2}}', shape) as writer:
        for item in ends:
            writer.ended(item)
            for decision in item.evidence.decisions:
                writer.decided(decision)
        summary = writer.finish(CLOSING)
    assert read_summary(tmp_path / "run") == summary
    ids, columns = read_run(tmp_path / "run")
    assert ids == [item.evidence.request for item in ends]
    again = Tally()
    again.columns, again.gaps, again.decisions = columns, writer.tally.gaps, writer.tally.decisions
    assert again.summary(CLOSING) == summary
    assert list(read_decisions(tmp_path / "run")) == [one for item in ends for one in item.evidence.decisions]
    assert read_scenario_tree(tmp_path / "run") == {"fleet": {"replicas": 2}}


def test_the_summary_agrees_with_that_of_a_load_on_a_server() -> None:
    # configiq#8, guidellm#1144: TPOT has one definition
    targets = Targets(ttft_ms=60.0, tpot_ms=10.0)
    _, ends = simulated(targets=targets)
    tally = Tally()
    for item in ends:
        tally.ended(item)
    loaded = summarise([item.outcome for item in ends], targets)
    summary = tally.summary(CLOSING)
    for name in Summary.__struct_fields__:
        if name.endswith("_ms"):
            ours, theirs = msgspec.to_builtins(getattr(summary, name)), msgspec.to_builtins(getattr(loaded, name))
            assert ours == pytest.approx(theirs, rel=0.001)
        else:
            assert getattr(summary, name) == pytest.approx(getattr(loaded, name))


def test_an_interrupted_run_can_be_read_and_says_so(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), RunWriter(tmp_path / "run", b"{}", "jsonl") as writer:
        writer.ended(end("req-0", 0, 10, 20))
        writer.finish(
            msgspec.structs.replace(CLOSING, complete=False, unfinished=(OpenRequest(5), OpenRequest(1_500_000_000)))
        )
        raise KeyboardInterrupt
    summary = read_summary(tmp_path / "run")
    assert (summary.complete, summary.unfinished, summary.oldest_unfinished_s) == (False, 2, 1.5)
    assert (summary.sent, summary.completed, summary.attainment) == (3, 1, pytest.approx(1 / 3))
    assert read_requests(tmp_path / "run", ["request"]) == {"request": ["req-0"]}


def test_a_run_that_broke_leaves_its_requests_but_no_summary(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), RunWriter(tmp_path / "run", b"{}", "jsonl") as writer:
        writer.ended(end("req-0", 0, 10, 20))
        raise ZeroDivisionError
    assert read_requests(tmp_path / "run", ["request"]) == {"request": ["req-0"]}
    with pytest.raises(ConfigError, match=r"there is no summary\.json.*was it killed"):
        read_summary(tmp_path / "run")


def test_a_new_run_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    with RunWriter(tmp_path, b"{}", "jsonl") as writer:
        writer.ended(end("req-0", 0, 10, 20))
        writer.finish(CLOSING)
    with RunWriter(tmp_path, b"{}", "jsonl"):
        assert not (tmp_path / "summary.json").exists()
        assert not (tmp_path / "requests.jsonl").exists()


def test_rows_leave_the_memory_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.bench.results.ENDS_WAITING", 10)
    with RunWriter(tmp_path, b"{}", "jsonl") as writer:
        for place in range(25):
            writer.ended(end(f"req-{place}", place, place + 10))
        assert len((tmp_path / "requests.jsonl.partial").read_bytes().splitlines()) == 20
    assert len((tmp_path / "requests.jsonl").read_bytes().splitlines()) == 25


def test_without_pyarrow_requests_are_json_lines_and_the_writer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    with RunWriter(tmp_path, b"{}") as writer:
        writer.ended(end("req-0", 0, 10, 20))
    assert "extra `parquet`" in writer.note
    assert (tmp_path / "requests.jsonl").is_file()
    with pytest.raises(ConfigError, match="pyarrow"):
        RunWriter(tmp_path, b"{}", "parquet")


def test_times_of_cold_requests_stand_apart() -> None:  # SPEC I2
    tally = Tally()
    for item in (end("req-0", 0, 10, 20), end("req-1", 0, 9000, 9010, cold=True)):
        tally.ended(item)
    summary = tally.summary(CLOSING)
    assert (summary.ttft_ms.count, summary.ttft_ms.max) == (1, 10.0)
    assert summary.cold is not None
    assert (summary.cold.sent, summary.cold.ttft_ms.max) == (1, 9000.0)
    assert summary.completed == 2


def test_each_target_and_the_deadline_form_are_told_apart() -> None:
    # REFERENCE 1: delaying tokens cannot game the deadline form: the mean TPOT here is met
    targets = Targets(ttft_ms=20.0, tpot_ms=15.0, e2e_ms=35.0)
    tally = Tally()
    for item in (
        end("req-0", 0, 10, 20, 30, targets=targets),
        end("req-1", 0, 10, 39, 40, targets=targets),  # token 2 is due at 35 ms
        end("req-2", 0, targets=targets),
    ):
        tally.ended(item)
    summary = tally.summary(CLOSING)
    thirds = {"ttft": 2 / 3, "tpot": 2 / 3, "e2e": 1 / 3, "deadlines": 1 / 3}
    assert summary.attained == pytest.approx(thirds)
    assert summary.attainment == pytest.approx(1 / 3)
    assert (summary.refused, summary.errors) == (1, {"queue_full": 1})


def test_tenants_are_told_apart_and_compared_by_what_they_asked_for() -> None:  # SPEC I3
    tally = Tally()
    for place in range(4):
        tally.ended(end(f"req-{place}", place, 10, 20, tenant="a"))
        tally.ended(end(f"req-b{place}", place, *((10, 20) if place == 0 else ()), tenant="b"))
    summary = tally.summary(CLOSING)
    assert summary.tenants["a"].attainment == 1.0
    assert summary.tenants["b"].attainment == 0.25
    served = 12 / 42
    assert summary.jain_tenants == pytest.approx((1 + served) ** 2 / (2 * (1 + served**2)))


def test_an_outcome_without_any_request_is_a_summary_of_nothing() -> None:
    summary = Tally().summary(CLOSING)
    assert (summary.sent, summary.attainment, summary.ttft_ms.p99, summary.jain_tenants) == (0, 0.0, None, None)


def test_a_request_of_one_token_has_no_gaps_and_no_tpot() -> None:
    tally = Tally()
    tally.ended(end("req-0", 0, 10))
    summary = tally.summary(CLOSING)
    assert (summary.ttft_ms.count, summary.tpot_ms.count, summary.itl_ms.count) == (1, 0, 0)
    assert Outcome(0, 10, (10,), 1).tpot_ns is None


def test_what_was_sent_in_the_warm_up_is_in_the_files_and_in_no_figure(tmp_path: Path) -> None:
    with RunWriter(tmp_path, b"{}", "jsonl", warmup_ns=1_000_000_000) as writer:
        writer.ended(end("req-0", 0, 500, 600))
        writer.ended(end("req-1", 1500, 10, 20))
        summary = writer.finish(
            msgspec.structs.replace(CLOSING, unfinished=(OpenRequest(1_900_000_000), OpenRequest(1)))
        )
    assert read_requests(tmp_path, ["request"]) == {"request": ["req-0", "req-1"]}
    assert (summary.arrived, summary.sent, summary.unfinished, summary.warmup_s) == (4, 2, 1, 1.0)
    assert (summary.ttft_ms.max, summary.itl_ms.count) == (10.0, 1)


@pytest.mark.parametrize(("name", "read"), [("summary.json", read_summary), ("series.jsonl", read_series)])
def test_a_file_of_another_version_is_refused_by_name(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / name).write_text('{"from_s": 1}\n')
    with pytest.raises(ConfigError, match=f"{name}: this is no"):
        read(tmp_path)
