"""Reads measured engine steps: what `headway trace export --format steps` writes, and tables in CSV."""

import csv
import io
from collections.abc import Mapping
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.step_record import StepRecord
from headway.core.units import NS_PER_MS, NS_PER_S, NS_PER_US, Ns

_TIMES: Final = {"time_ns": 1, "time_us": NS_PER_US, "time_ms": NS_PER_MS, "time_s": NS_PER_S}
_SHAPES: Final = ("batch", "context", "kv_tokens", "tokens", "pairs", "chunks")
_record: msgspec.json.Decoder[StepRecord] = msgspec.json.Decoder(StepRecord)


def read_steps(content: bytes, name: str) -> list[StepRecord]:
    """Read JSON lines of steps. Raises ConfigError with file and line."""
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_record.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from None
    return found


def read_table(content: bytes, name: str) -> list[StepRecord]:
    """Read a CSV table with a header: a row per step, or per mean of equal steps.

    `batch`: rows that decode; `context`: their mean context, or `kv_tokens`: its sum; `tokens`: prompt tokens; `pairs`:
    query-key pairs, unset: those of one prompt from its start; `chunks`: prompts; and one of `time_ns`, `time_us`,
    `time_ms`, `time_s`. Other columns are refused: a measured dimension that no fit sees is a source of error.
    """
    rows = csv.DictReader(io.StringIO(content.decode()))
    columns = tuple(rows.fieldnames or ())
    times = [column for column in columns if column in _TIMES]
    unknown = [column for column in columns if column not in _TIMES and column not in _SHAPES]
    if len(times) != 1 or unknown or not {"batch", "tokens"} & set(columns):
        raise ConfigError(
            f"{name} has the columns {', '.join(columns) or 'none'}; a table has some of {', '.join(_SHAPES)} (batch "
            f"or tokens at least) and one of {', '.join(_TIMES)}"
        )
    found: list[StepRecord] = []
    for number, row in enumerate(rows, 2):
        began_ns = found[-1].done_ns if found else 0  # as if they had run one after the other
        found.append(_step(row, times[0], f"{name}, line {number}", began_ns))
    return found


def _step(row: Mapping[str, str | None], time: str, where: str, began_ns: Ns) -> StepRecord:
    def value(column: str) -> float:
        text = row.get(column) or "0"
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{where}: {column} is {text!r}, not a number") from None

    decodes, tokens = round(value("batch")), round(value("tokens"))
    pairs = round(value("pairs")) or tokens * (tokens + 1) // 2
    chunks = round(value("chunks")) or int(tokens > 0)
    kind = "mixed" if decodes and tokens else "decode" if decodes else "prefill"
    kv_tokens = round(value("kv_tokens") or decodes * value("context"))
    took_ns = round(value(time) * _TIMES[time])
    if took_ns <= 0 or min(decodes, tokens, kv_tokens) < 0:
        raise ConfigError(f"{where}: a step of {decodes} rows and {tokens} prompt tokens in {took_ns} ns cannot be")
    done_ns = began_ns + took_ns
    return StepRecord("table", 0, kind, decodes, kv_tokens, tokens, pairs, chunks, tokens, began_ns, began_ns, done_ns)
