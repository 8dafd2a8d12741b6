import json
from pathlib import Path

import pytest
from tests.unit.adapters.telemetry.records import TRACE, record

from headway.adapters.gateway.evidence import evidence_object
from headway.adapters.telemetry.jsonl import EvidenceFile, evidence_lines

LINE = len(evidence_lines([record("req-1")]))


def names(path: Path) -> list[str]:
    return [json.loads(line)["request"] for line in path.read_text().splitlines()]


def test_a_line_is_the_record_as_http_shows_it() -> None:
    # SPEC I4
    (line,) = evidence_lines([record()]).splitlines()
    assert json.loads(line) == json.loads(json.dumps(evidence_object([record()], None)))


def test_what_is_read_back_still_adds_up(tmp_path: Path) -> None:
    # SPEC I2, I4
    path = tmp_path / "e.jsonl"
    EvidenceFile(path, 1 << 20, 2).append([record("req-1"), record("req-2")])
    for line in path.read_text().splitlines():
        found = json.loads(line)
        assert sum(found["segments"].values()) == pytest.approx(found["e2e_ms"], rel=0.01)
    assert names(path) == ["req-1", "req-2"]


def test_a_second_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    for name in ("req-1", "req-2"):
        EvidenceFile(path, 1 << 20, 2).append([record(name)])
    assert names(path) == ["req-1", "req-2"]


def test_a_full_file_is_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    file = EvidenceFile(path, 2 * LINE, 2)
    assert file.append([record(f"req-{n}") for n in range(1, 8)]) == 0
    assert {entry.name: names(entry) for entry in tmp_path.iterdir()} == {
        "e.jsonl": ["req-7"],
        "e.jsonl.1": ["req-5", "req-6"],
    }
    assert all(entry.stat().st_size <= 2 * LINE for entry in tmp_path.iterdir())


def test_with_one_file_the_full_one_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    EvidenceFile(path, LINE, 1).append([record("req-1"), record("req-2")])
    assert [entry.name for entry in tmp_path.iterdir()] == ["e.jsonl"]
    assert names(path) == ["req-2"]


def test_a_record_larger_than_the_file_is_still_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    EvidenceFile(path, 10, 3).append([record("req-1"), record("req-2")])
    assert names(path) == ["req-2"]
    assert names(tmp_path / "e.jsonl.1") == ["req-1"]


def test_a_folder_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        EvidenceFile(tmp_path / "missing" / "e.jsonl", 10, 1)


def test_the_trace_id_of_the_record_is_on_its_line() -> None:
    import msgspec

    found = json.loads(evidence_lines([msgspec.structs.replace(record(), trace_id=TRACE)]))
    assert found["trace_id"] == TRACE
