import sys
from pathlib import Path

import msgspec
import pytest
from tests.unit.adapters.telemetry.records import record

from headway.adapters.telemetry.jsonl import evidence_lines
from headway.bench import parquet
from headway.bench.parquet import check_parquet, write_parquet
from headway.core.errors import ConfigError


def test_rows_are_the_lines_and_still_add_up(tmp_path: Path) -> None:
    # SPEC I4
    arrow = pytest.importorskip("pyarrow.parquet")
    records = [record("req-1"), msgspec.structs.replace(record("req-2"), ttft_ms=None, replica=None)]
    path = tmp_path / "e.parquet"
    assert write_parquet(evidence_lines(records), path) == 2
    rows = arrow.read_table(path).to_pylist()
    lines = [msgspec.json.decode(line) for line in evidence_lines(records).splitlines()]
    assert [row | {"segments": dict(row["segments"])} for row in rows] == lines
    for row in rows:
        assert sum(dict(row["segments"]).values()) == pytest.approx(row["e2e_ms"], rel=0.01)


def test_files_have_one_schema_whatever_is_in_them(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow.parquet")
    write_parquet(evidence_lines([record()]), tmp_path / "some")
    write_parquet(b"", tmp_path / "none")
    assert arrow.read_schema(tmp_path / "none") == arrow.read_schema(tmp_path / "some")


def test_without_pyarrow_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"--format parquet needs the package pyarrow.*-e '\.\[parquet\]'"):
        check_parquet()


def test_rows_wait_for_a_whole_group_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "GROUP_ROWS", 10)
    with parquet.TableFile(tmp_path / "rows", {"n": int}) as file:
        for begin in range(0, 25, 5):
            file.write({"n": list(range(begin, begin + 5))})
    found = pyarrow.ParquetFile(tmp_path / "rows")
    assert [found.metadata.row_group(place).num_rows for place in range(found.num_row_groups)] == [10, 10, 5]
    assert found.read().column("n").to_pylist() == list(range(25))
