"""BurstGPT's trace: CSV of Timestamp (whole seconds), Model, Request tokens, Response tokens, Total tokens, Log Type.

Rows with 0 response tokens are failed requests (its README) and are left out. Newer releases have columns for session
and elapsed time besides; columns go by name.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from headway.core.units import NS_PER_S
from headway.workload.rows import BadLine, Columns, Row, checked, lines, ns_of

COLUMNS: Final = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")


def rows(path: Path, models: Collection[str] = (), log_types: Collection[str] = ()) -> Iterator[Row]:
    """Yield the requests that did not fail, of some models and log types; empty: of all. Raises ConfigError."""
    return checked(_rows(path, models, log_types), path)


def _rows(path: Path, models: Collection[str], log_types: Collection[str]) -> Iterator[tuple[int, Row]]:
    columns: Columns | None = None
    for number, line in lines(path):
        if columns is None:
            columns = Columns(path, line, COLUMNS)
            continue
        stamp, model, asked, answered, log_type = columns.values(number, line)
        tokens = columns.integer(number, COLUMNS[3], answered)
        if tokens == 0 or (models and model not in models) or (log_types and log_type not in log_types):
            continue
        try:
            at_s = float(stamp)
        except ValueError:
            raise BadLine(path, number, f"Timestamp {stamp[:40]!r} is not a number of seconds") from None
        at_ns = ns_of(path, number, at_s, NS_PER_S)
        yield number, Row(at_ns, columns.integer(number, COLUMNS[2], asked), tokens)
