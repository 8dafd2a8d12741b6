from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.workload.rows import LINE_BYTES, Columns, Row, checked, lines, spread

FILE = Path("trace.csv")


def test_lines_are_numbered_as_an_editor_does_and_empty_ones_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"a\r\n\nb")
    assert list(lines(path)) == [(1, b"a"), (3, b"b")]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"a\n" + b"x" * (LINE_BYTES + 1))
    with pytest.raises(ConfigError, match=r"t, line 2: longer than \d+ bytes"):
        list(lines(path))


def test_a_file_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        list(lines(tmp_path / "none"))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row(5, 0, 1), "0 input tokens; it needs 1 to"),
        (Row(5, 1, 0), "0 output tokens"),
        (Row(5, 1, 10**9), "1000000000 output tokens"),
        (Row(-1, 1, 1), "time -1e-09 s; it needs 0 or more"),
        (Row(1 << 63, 1, 1), "less than a century"),
        (Row(5, 1025, 1, (1, 2, 3, 4), 512), "4 hash ids of 512 tokens for 1025 input tokens"),
    ],
)
def test_a_row_that_cannot_be_names_its_line(row: Row, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(checked([(3, Row(0, 1, 1)), (7, row)], FILE))
    assert f"{FILE}, line 7: " in str(caught.value)
    assert text in str(caught.value) or row.blocks


def test_a_trace_that_goes_back_in_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="line 2: 2 s before the line above; sort the trace by time"):
        list(checked([(1, Row(3_000_000_000, 1, 1)), (2, Row(1_000_000_000, 1, 1))], FILE))


def test_rounded_times_are_spread_in_the_order_of_the_file_and_as_they_come() -> None:
    pulled = []

    def rows() -> list[Row]:
        return [Row(second * 1_000_000_000, k + 1, 1) for second in (0, 1, 5) for k in range(50)]

    def watched() -> Iterator[Row]:
        for row in rows():
            pulled.append(row)
            yield row

    found = spread(watched(), 1000.0, 0, "k")
    first = list(islice(found, 50))
    assert len(pulled) == 51  # the first of the next second tells that this one is over
    rest = list(found)
    times = [row.at_ns for row in first + rest]
    assert times == sorted(times)
    assert len(set(times)) == 150
    assert [row.input_tokens for row in first + rest] == [row.input_tokens for row in rows()]
    for row, item in zip(rows(), first + rest, strict=True):
        assert row.at_ns <= item.at_ns < row.at_ns + 1_000_000_000


def test_columns_go_by_name_whatever_their_order_and_a_missing_one_is_named() -> None:
    columns = Columns(FILE, b"\xef\xbb\xbfb,a,c", ("a", "c"))
    assert columns.values(2, b"1, 2,3") == ["2", "3"]
    with pytest.raises(ConfigError, match="line 2: 2 fields where the header has 3"):
        columns.values(2, b"1,2")
    with pytest.raises(ConfigError, match="line 9: a 'x' is not an integer"):
        columns.integer(9, "a", "x")
    with pytest.raises(ConfigError, match="line 1: no column 'z'"):
        Columns(FILE, b"a,b", ("a", "z"))
