"""Azure's public traces of LLM inference (2023 and 2024): CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

Times have seven digits of a second in 2023 and six with a time zone in 2024. The last line of a file may lack its end.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headway.core.units import NS_PER_S, Ns
from headway.workload.rows import BadLine, Columns, Row, checked, lines

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def rows(path: Path) -> Iterator[Row]:
    """Yield the requests of a file. Raises ConfigError."""
    return checked(_rows(path), path)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    columns: Columns | None = None
    for number, line in lines(path):
        if columns is None:
            columns = Columns(path, line, COLUMNS)
            continue
        stamp, context, generated = columns.values(number, line)
        at_ns = _ns(stamp)
        if at_ns is None:
            raise BadLine(path, number, f"TIMESTAMP {stamp[:40]!r} is not like 2023-11-16 18:15:46.6805900")
        yield (
            number,
            Row(
                at_ns,
                columns.integer(number, COLUMNS[1], context),
                columns.integer(number, COLUMNS[2], generated),
            ),
        )


def _ns(stamp: str) -> Ns | None:
    """Nanoseconds since 1970. Python's own parser keeps microseconds, the trace has tenths of them."""
    text = stamp.removesuffix("+00:00")
    whole, fraction = text[:19], text[19:]
    if fraction and not (fraction[0] == "." and fraction[1:].isdecimal() and len(fraction) <= 10):
        return None
    try:
        second = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    except ValueError:
        return None
    return round(second.timestamp()) * NS_PER_S + int(fraction[1:].ljust(9, "0") or 0)
