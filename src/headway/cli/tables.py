"""Tables of the commands as plain text: whole where they are piped, in readable blocks where a terminal is narrower."""

import os
import sys
from collections.abc import Sequence

_GAP = "  "


def width_shown() -> int | None:
    """Columns of the terminal that standard output is; None where it is none: then nothing has to fit."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None


def table_text(rows: Sequence[Sequence[str]], numbers: Sequence[int] = (), width: int | None = None) -> str:
    """Return a table; the first row holds the titles, the columns at `numbers` stand to the right.

    Wider than `width`: one block per row, a line per cell that is not empty. Nothing is ever cut.
    """
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None and sum(wide) + len(_GAP) * (len(wide) - 1) > width and len(rows) > 1:
        return "\n\n".join(_block(rows[0], row) for row in rows[1:])
    lines = []
    for row in rows:
        cells = [
            text.rjust(space) if place in numbers else text.ljust(space)
            for place, (text, space) in enumerate(zip(row, wide, strict=True))
        ]
        lines.append(_GAP.join(cells).rstrip())
    return "\n".join(lines)


def _block(titles: Sequence[str], row: Sequence[str]) -> str:
    space = max(map(len, titles))
    return "\n".join(f"{title:<{space}}{_GAP}{text}" for title, text in zip(titles, row, strict=True) if text)
