"""Evidence of requests as a Parquet file, from a server and from a simulation alike.

pyarrow is the extra `parquet`, imported only here and only when a file is written or read.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import msgspec

from headway.bench.ends import Column, Table
from headway.core.errors import ConfigError
from headway.core.evidence_row import evidence_columns

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, object]
GROUP_ROWS: Final = 8192  # of a row group: each costs some 40 kB of footer, which stays in memory


def has_pyarrow() -> bool:
    """True when Parquet can be read and written here."""
    return importlib.util.find_spec("pyarrow") is not None


def check_parquet(what: str = "--format parquet", instead: str = "use --format jsonl") -> None:
    """Raise ConfigError when pyarrow is not installed."""
    if not has_pyarrow():
        raise ConfigError(
            f"{what} needs the package pyarrow, which is not installed; "
            f"install the extra `parquet` (pip install -e '.[parquet]' in the clone) or {instead}"
        )


def write_parquet(lines: bytes, path: Path) -> int:
    """Write the records of JSON lines, one row each; returns their number. Raises ConfigError without pyarrow."""
    check_parquet()
    rows = [msgspec.json.decode(line, type=dict[str, object]) for line in lines.splitlines()]
    columns = evidence_columns()
    with TableFile(path, columns) as file:
        if rows:
            file.write({name: [row[name] for row in rows] for name in columns})
    return len(rows)


class TableFile:
    """A Parquet file that grows by row groups. It can be read once it is closed."""

    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        import pyarrow.parquet

        self._columns = columns
        self._schema = arrow_schema(columns)
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)
        self._waiting: list[pa.Table] = []

    def write(self, table: Table) -> None:
        """Append rows."""
        import pyarrow as pa

        arrays = [_array(kind, table[name]) for name, kind in self._columns.items()]
        self._waiting.append(pa.Table.from_arrays(arrays, schema=self._schema))
        if sum(part.num_rows for part in self._waiting) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=4 * GROUP_ROWS)
            self._waiting = []

    def close(self) -> None:
        """Write what waits, and the footer."""
        self._flush()
        self._writer.close()

    def __enter__(self) -> "TableFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[object]]:
    """Return columns of a file as lists; one that an older run did not have is empty. Raises ConfigError without
    pyarrow."""
    check_parquet(f"{path}", "let the run write JSON lines")
    import pyarrow.parquet

    there = set(pyarrow.parquet.read_schema(path).names)
    table = pyarrow.parquet.read_table(path, columns=[name for name in names if name in there])
    found: dict[str, list[object]] = table.to_pydict()
    return {name: found[name] if name in there else [None] * table.num_rows for name in names}


def arrow_schema(columns: Mapping[str, type]) -> "pa.Schema":
    """Return the columns in Arrow's types."""
    import pyarrow as pa

    return pa.schema([(name, _arrow_type(kind)) for name, kind in columns.items()])


def _arrow_type(kind: type) -> "pa.DataType":
    import pyarrow as pa

    if kind is dict:
        return pa.map_(pa.string(), pa.float64())
    if kind is list:
        alternative = pa.struct([("name", pa.string()), ("score", pa.float64())])
        texts = [(name, pa.string()) for name in ("kind", "chosen", "reason")]
        fields = [("level", pa.string()), ("at_ms", pa.float64()), *texts, ("alternatives", pa.list_(alternative))]
        return pa.list_(pa.struct(fields))
    return {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}[kind]


def _array(kind: type, values: Column) -> "pa.Array":
    import pyarrow as pa

    if kind is dict:
        return pa.array([list(value.items()) if isinstance(value, dict) else [] for value in values], _arrow_type(dict))
    if kind is list:
        return _decisions([value if isinstance(value, list) else [] for value in values])
    return pa.array(values, _arrow_type(kind), from_pandas=True)  # nan in an array: does not apply


def _decisions(rows: Sequence[Sequence[Row]]) -> "pa.Array":
    """Build the nested column from flat ones: an object per decision costs ten times as much."""
    import pyarrow as pa

    outer = _arrow_type(list)
    flat = [decision for row in rows for decision in row]
    arrays = []
    for field in outer.value_type:
        values = [decision[field.name] for decision in flat]
        if field.name == "alternatives":
            arrays.append(_alternatives(values, field.type.value_type))
        else:
            arrays.append(pa.array(values, field.type))
    inner = pa.StructArray.from_arrays(arrays, fields=list(outer.value_type))
    return pa.ListArray.from_arrays(_offsets(rows), inner, type=outer)


def _alternatives(values: Sequence[object], item: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    lists = [value if isinstance(value, list) else [] for value in values]
    flat = [alternative for value in lists for alternative in value]
    columns = [pa.array([alternative[field.name] for alternative in flat], field.type) for field in item]
    return pa.ListArray.from_arrays(_offsets(lists), pa.StructArray.from_arrays(columns, fields=list(item)))


def _offsets(lists: Sequence[Sequence[object]]) -> "pa.Array":
    import pyarrow as pa

    return pa.array([0, *accumulate(len(inner) for inner in lists)], pa.int32())
