"""Lines of trace files with limits, and what every trace is read into: one row per request, in the order of arrival."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_MS, Ns

LINE_BYTES: Final = 4 << 20  # a prompt of half a million token ids
TOKENS_MAX: Final = 10_000_000
NS_MAX: Final = 1 << 62  # 146 years


class Row(msgspec.Struct, frozen=True):
    """One request of a trace. What identifies content: `tokens`, or `blocks` (each stands for `block_tokens` tokens and
    all before them), or only how many tokens it shares with every prompt of its tenant."""

    at_ns: Ns  # on the clock of the file
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    tokens: tuple[int, ...] = ()
    shared_tokens: int = 0
    session: str | None = None
    tenant: str | None = None
    model: str | None = None


class BadLine(ConfigError):
    """A line that is not what its format says."""

    def __init__(self, path: Path, number: int, message: str) -> None:
        super().__init__(f"trace {path}, line {number}: {message}")


def ns_of(path: Path, number: int, value: float, unit_ns: int) -> Ns:
    """A time of a line in nanoseconds. Raises ConfigError for one that no trace has."""
    if not 0 <= value * unit_ns <= NS_MAX:  # also what is not a number
        raise BadLine(path, number, f"time {value:g}; it needs 0 or more, and less than a century")
    return round(value * unit_ns)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each line that is not empty. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES + 1):
                number += 1
                if len(line) > LINE_BYTES:
                    raise BadLine(path, number, f"longer than {LINE_BYTES} bytes; is this a trace?")
                line = line.rstrip(b"\r\n")
                if line:
                    yield number, line
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror or error}") from None


def check_readable(path: Path) -> None:
    """Raise ConfigError unless the file can be opened."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror or error}; paths begin at the scenario file") from None


def checked(rows: Iterable[tuple[int, Row]], path: Path) -> Iterator[Row]:
    """Pass rows on, by their line. Raises ConfigError for a length or a time that cannot be."""
    last_ns = 0
    for number, row in rows:
        for what, tokens in (("input", row.input_tokens), ("output", row.output_tokens)):
            if not 1 <= tokens <= TOKENS_MAX:
                raise BadLine(path, number, f"{tokens} {what} tokens; it needs 1 to {TOKENS_MAX}")
        if not 0 <= row.at_ns <= NS_MAX:
            raise BadLine(path, number, f"time {row.at_ns / 1e9:g} s; it needs 0 or more, and less than a century")
        if row.at_ns < last_ns:
            raise BadLine(
                path, number, f"{(last_ns - row.at_ns) / 1e9:g} s before the line above; sort the trace by time"
            )
        if row.blocks and (len(row.blocks) - 1) * row.block_tokens >= row.input_tokens:
            blocks = f"{len(row.blocks)} hash ids of {row.block_tokens} tokens"
            raise BadLine(path, number, f"{blocks} for {row.input_tokens} input tokens")
        last_ns = row.at_ns
        yield row


def spread(rows: Iterable[Row], quantum_ms: float, seed: int, key: str) -> Iterator[Row]:
    """Undo the rounding of times: what was rounded down to a quantum is spread over it, in the order of the file."""
    if not quantum_ms:
        yield from rows
        return
    waiting: deque[Row] = deque()
    times: list[Ns] = []
    for place, row in enumerate(rows):
        while times and times[0] <= row.at_ns:  # no later row gets an earlier time
            yield msgspec.structs.replace(waiting.popleft(), at_ns=heapq.heappop(times))
        waiting.append(row)
        heapq.heappush(times, row.at_ns + round(quantum_ms * NS_PER_MS * draw_unit(seed, key, 0, place)))
    while times:
        yield msgspec.structs.replace(waiting.popleft(), at_ns=heapq.heappop(times))


class Columns:
    """The columns of a CSV file without quotes, by the names in its first line."""

    def __init__(self, path: Path, header: bytes, wanted: tuple[str, ...]) -> None:
        """Raises ConfigError when one is missing."""
        self._path = path
        names = header.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").split(",")
        self._count = len(names)
        missing = [name for name in wanted if name not in names]
        if missing:
            raise BadLine(path, 1, f"no column {missing[0]!r}; a header with {','.join(wanted)} belongs here")
        self._places = [names.index(name) for name in wanted]

    def values(self, number: int, line: bytes) -> list[str]:
        """The wanted fields of a line, in the order that they were asked for in."""
        fields = line.decode("utf-8", "replace").split(",")
        if len(fields) != self._count:
            raise BadLine(self._path, number, f"{len(fields)} fields where the header has {self._count}")
        return [fields[place].strip() for place in self._places]

    def integer(self, number: int, name: str, text: str) -> int:
        """An integer field."""
        try:
            return int(text)
        except ValueError:
            raise BadLine(self._path, number, f"{name} {text[:40]!r} is not an integer") from None
