"""A folder with what a run left behind, written while it runs and read again by `compare`, `sweep` and `plan`.

`summary.json` (`bench.run_summary`), `requests.parquet` or `.jsonl` (`bench.ends`), `decisions.jsonl` (core.decisions),
`series.jsonl` (`bench.series`), `scenario.json` as it was run with every change, `report.html`. Rows are written when
requests end. `summary.json` is there once the run is over or was interrupted; then `complete` tells which.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Protocol

import msgspec
import numpy as np

from headway.bench.columns import KEPT, Columns
from headway.bench.ends import Column, RequestEnd, Table, Tokens, request_columns, table_of
from headway.bench.gap_counts import GapCounts
from headway.bench.parquet import TableFile, check_parquet, has_pyarrow, read_columns
from headway.bench.run_summary import Closing, RunSummary, summarise_run
from headway.bench.series import Point, Run, series
from headway.core.decisions import Decision
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S, Ns

SUMMARY: Final = "summary.json"
SCENARIO: Final = "scenario.json"
DECISIONS: Final = "decisions.jsonl"
SERIES: Final = "series.jsonl"
REPORT: Final = "report.html"
REQUESTS: Final = {"parquet": "requests.parquet", "jsonl": "requests.jsonl"}
PARTIAL: Final = ".partial"  # behind the name of a file that is not whole yet
ENDS_WAITING: Final = 512  # ends and decisions that wait in memory to be counted and written together

_encoder = msgspec.json.Encoder()
RequestsFormat = Literal["parquet", "jsonl"]


class Sink(Protocol):
    """Where a simulation sends what happened."""

    def ended(self, end: RequestEnd) -> None:
        """A request is over and its evidence is whole."""
        ...

    def decided(self, decision: Decision) -> None:
        """A decision that changed something."""
        ...


class Tally:
    """A sink that keeps numbers only: enough for the summary of a run that leaves no files (sweeps, plans)."""

    def __init__(self, warmup_ns: Ns = 0) -> None:
        """Requests sent before `warmup_ns` count in no figure."""
        self._warmup_ns = warmup_ns
        self.columns, self.gaps = Columns(), GapCounts()
        self.decisions: Counter[str] = Counter()
        self._waiting: list[RequestEnd] = []

    def ended(self, end: RequestEnd) -> None:
        """Count a request."""
        self._waiting.append(end)
        if len(self._waiting) >= ENDS_WAITING:
            self.count(self._waiting)
            self._waiting = []

    def count(self, ends: Sequence[RequestEnd]) -> dict[str, Column]:
        """Count requests; return their table."""
        tokens = Tokens([end.outcome for end in ends])
        table = table_of(ends, tokens)
        self.columns.extend(table)
        begun_ns = self._warmup_ns
        counts = [end.outcome.error is None and end.outcome.sent_ns >= begun_ns for end in ends]
        self.gaps.add(tokens.gaps_ns[np.array(counts, dtype=np.bool_)[tokens.gap_owner]])
        return table

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        self.decisions[f"{decision.level}/{decision.kind}"] += 1

    def summary(self, closing: Closing) -> RunSummary:
        """Summarise what was counted."""
        if self._waiting:
            self.count(self._waiting)
            self._waiting = []
        closing = msgspec.structs.replace(closing, decisions=closing.decisions or self.decisions)
        return summarise_run(self.columns, self.gaps, closing, self._warmup_ns)


class RunWriter:
    """A sink that writes a run's folder. Use as a context: an error leaves what had ended, as an incomplete run."""

    def __init__(
        self, folder: Path, scenario: bytes, requests: RequestsFormat | None = None, warmup_ns: Ns = 0
    ) -> None:
        """`scenario`: JSON of what is run. `requests` None: Parquet where pyarrow is, else JSON lines (`note` says so).

        Raises ConfigError for Parquet without pyarrow.
        """
        self.note = ""
        if requests is None:
            requests = "parquet" if has_pyarrow() else "jsonl"
            if requests == "jsonl":
                self.note = "requests go to requests.jsonl: Parquet needs the extra `parquet` (pyarrow)"
        elif requests == "parquet":
            check_parquet(f"{folder / REQUESTS['parquet']}", "write JSON lines")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"results cannot be written to {folder}: {error.strerror or error}") from None
        for name in (SUMMARY, SERIES, REPORT, DECISIONS, *REQUESTS.values()):  # of a run before this one
            (folder / name).unlink(missing_ok=True)
        write_whole(folder / SCENARIO, msgspec.json.format(scenario))
        self.folder, self.tally = folder, Tally(warmup_ns)
        self._place = folder / REQUESTS[requests]
        partial = self._place.with_name(self._place.name + PARTIAL)
        self._requests: TableFile | _LineFile
        self._requests = TableFile(partial, request_columns()) if requests == "parquet" else _LineFile(partial)
        self._decisions = _LineFile(folder / DECISIONS)
        self._ends: list[RequestEnd] = []
        self._decided: list[Decision] = []
        self._is_closed = False

    def ended(self, end: RequestEnd) -> None:
        """Write a request."""
        self._ends.append(end)
        if len(self._ends) >= ENDS_WAITING:
            self._flush()

    def decided(self, decision: Decision) -> None:
        """Write a decision."""
        self.tally.decided(decision)
        self._decided.append(decision)
        if len(self._decided) >= ENDS_WAITING:
            self._flush()

    def _flush(self) -> None:
        if self._ends:
            table, self._ends = self.tally.count(self._ends), []
            self._requests.write(table)
        self._decisions.write_items(self._decided)
        self._decided = []

    def finish(self, closing: Closing) -> RunSummary:
        """Close the files and write the summary, last: who finds it finds the others whole."""
        self.close()
        summary = self.tally.summary(closing)
        now_ns = closing.virtual_s * NS_PER_S
        open_ns = [now_ns - request.age_ns for request in closing.unfinished]
        points = series(Run(self.tally.columns, closing.virtual_s, closing.samples, open_ns))
        write_whole(self.folder / SERIES, _encoder.encode_lines(points))
        write_whole(self.folder / SUMMARY, msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        return summary

    def close(self) -> None:
        """Write what waits and close the files; the requests get their name."""
        if self._is_closed:
            return
        self._is_closed = True
        self._flush()
        self._requests.close()
        self._decisions.close()
        os.replace(self._place.with_name(self._place.name + PARTIAL), self._place)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LineFile:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("wb")

    def write(self, table: Table) -> None:
        names = list(table)
        columns = [_plain(column) for column in table.values()]
        self.write_items([dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])

    def write_items(self, items: Sequence[object]) -> None:
        self._file.write(_encoder.encode_lines(items))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _plain(column: Column) -> Sequence[object]:
    """Return the values of a column; None where a field does not apply."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype == np.int64:
        return column.tolist()
    # nan alone differs from itself
    return [None if value != value else value for value in column.tolist()]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that nobody sees half of it."""
    partial = path.with_name(path.name + PARTIAL)
    partial.write_bytes(content)
    os.replace(partial, path)


def read_summary(folder: Path) -> RunSummary:
    """Return the summary of a run's folder. Raises ConfigError naming what is missing or unreadable."""
    path = folder / SUMMARY
    if not path.is_file():
        why = "was it killed? nothing but what it wrote before is there" if (folder / SCENARIO).is_file() else ""
        raise ConfigError(
            f"{folder}: there is no {SUMMARY}; name the --out folder of `headway simulate`. {why}".strip()
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunSummary)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: this is no summary of a run: {error}") from None


def read_scenario_tree(folder: Path) -> dict[str, object]:
    """Return the scenario of a run's folder. Raises ConfigError when it is not there."""
    path = folder / SCENARIO
    if not path.is_file():
        raise ConfigError(f"{folder}: there is no {SCENARIO}; name the --out folder of `headway simulate`")
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object])


def read_requests(folder: Path, names: Sequence[str]) -> dict[str, list[object]]:
    """Return columns of the requests of a run. Raises ConfigError when there are none."""
    parquet, lines = (folder / REQUESTS[kind] for kind in ("parquet", "jsonl"))
    if parquet.is_file():
        return read_columns(parquet, names)
    if not lines.is_file():
        raise ConfigError(f"{folder}: there is neither {parquet.name} nor {lines.name}")
    found: dict[str, list[object]] = {name: [] for name in names}
    with lines.open("rb") as file:
        for line in file:
            row = msgspec.json.decode(line, type=dict[str, object])
            for name in names:
                found[name].append(row.get(name))
    return found


def read_run(folder: Path) -> tuple[list[str], Columns]:
    """Return ids and columns of a run's requests, in the order of their ends."""
    found = read_requests(folder, ("request", *KEPT))
    columns = Columns()
    columns.extend(found)
    return [str(name) for name in found["request"]], columns


def read_series(folder: Path) -> list[Point]:
    """Return the time series of a run. Raises ConfigError when it is not there."""
    path = folder / SERIES
    if not path.is_file():
        raise ConfigError(f"{folder}: there is no {SERIES}; was the run killed?")
    try:
        return [msgspec.json.decode(line, type=Point) for line in path.read_bytes().splitlines()]
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: this is no time series of a run, or one of another version: {error}") from None


def read_decisions(folder: Path) -> Iterator[Decision]:
    """Yield the decisions of a run, in the order in which they were made."""
    with (folder / DECISIONS).open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=Decision)
