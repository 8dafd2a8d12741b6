"""Evidence as a Parquet file, made of JSON lines. pyarrow is the extra `parquet`, imported only here."""

import importlib.util
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.core.errors import ConfigError
from headway.core.evidence import EvidenceRecord

if TYPE_CHECKING:
    import pyarrow as pa

_STAMPS: Final = ("started_ns", "ended_ns")  # not on the wire


def check_parquet() -> None:
    """Raise ConfigError when pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            "--format parquet needs the package pyarrow, which is not installed; "
            "install the extra `parquet` (pip install 'headway[parquet]') or use --format jsonl"
        )


def write_parquet(lines: bytes, path: Path) -> int:
    """Write the records of JSON lines, one row each; returns their number. Raises ConfigError without pyarrow."""
    check_parquet()
    import pyarrow as pa
    import pyarrow.parquet

    rows = [_row(line) for line in lines.splitlines()]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema=_schema()), path)
    return len(rows)


def _row(line: bytes) -> dict[str, object]:
    row = msgspec.json.decode(line, type=dict[str, object])
    segments = row["segments"]
    return row | {"segments": list(segments.items()) if isinstance(segments, dict) else []}


def _schema() -> "pa.Schema":
    """The record's fields; a schema that is inferred would differ between files whose optional fields are empty."""
    import pyarrow as pa

    alternative = pa.struct([("name", pa.string()), ("score", pa.float64())])
    decision = pa.struct(
        [
            ("level", pa.string()),
            ("at_ms", pa.float64()),
            ("kind", pa.string()),
            ("chosen", pa.string()),
            ("reason", pa.string()),
            ("alternatives", pa.list_(alternative)),
        ]
    )
    special = {"segments": pa.map_(pa.string(), pa.float64()), "decisions": pa.list_(decision)}
    plain = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    hints = get_type_hints(EvidenceRecord)
    return pa.schema(
        [
            (name, special[name] if name in special else plain[_plain_type(hints[name])])
            for name in EvidenceRecord.__struct_fields__
            if name not in _STAMPS
        ]
    )


def _plain_type(hint: object) -> type:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (inner for inner in get_args(hint) if inner is not NoneType)
    hint = getattr(hint, "__supertype__", hint)
    if not isinstance(hint, type):
        raise TypeError(f"evidence has a field of type {hint}, which no column holds")
    return hint
