"""Evidence of a run as a workload: its arrivals, lengths, tenants and models once more.

Reads `requests.parquet` or `requests.jsonl` of a simulated run (`sent_ns`) and what a server exports
(`started_ms`). Rows are written when requests end, so they are sorted here by their beginning. Content is not in it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_MS, Ns
from headway.workload.rows import BadLine, Row, checked, lines, ns_of
from headway.workload.spec import Replay

BATCH_ROWS: Final = 8192


class EvidenceLine(msgspec.Struct, frozen=True):
    """What a replay takes from one record."""

    request: str = ""
    prompt_tokens: int | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    tenant: str | None = None
    model: str | None = None
    sent_ns: Ns | None = None  # by a simulation, at the client
    started_ms: float | None = None  # by a server: first byte of the request, since it started


COLUMNS: Final = EvidenceLine.__struct_fields__


def rows(path: Path, spec: Replay) -> Iterator[Row]:
    """Yield the requests of a run in the order of their beginning. Keeps all its rows. Raises ConfigError."""
    found = _parquet(path) if path.suffix == ".parquet" else _lines(path)
    kept = [(record.request, number, _row(path, number, record, spec)) for number, record in found]
    kept.sort(key=lambda item: (item[2].at_ns, len(item[0]), item[0], item[1]))  # at one time: by id, 9 before 10
    return checked(((number, row) for _, number, row in kept), path)


def _row(path: Path, number: int, record: EvidenceLine, spec: Replay) -> Row:
    if record.prompt_tokens is None:
        raise BadLine(path, number, "no prompt_tokens; only runs of language models can be replayed")
    if record.sent_ns is not None:
        at_ns = record.sent_ns
    elif record.started_ms is not None:
        at_ns = ns_of(path, number, record.started_ms, NS_PER_MS)
    else:
        raise BadLine(path, number, "neither sent_ns nor started_ms; when did it arrive?")
    return Row(
        at_ns,
        record.prompt_tokens,
        record.output_tokens or spec.unanswered_tokens,
        shared_tokens=min(record.cached_tokens, record.prompt_tokens) if spec.keeps_hits else 0,
        tenant=record.tenant,
        model=record.model,
    )


def _lines(path: Path) -> Iterator[tuple[int, EvidenceLine]]:
    decoder = msgspec.json.Decoder(EvidenceLine)
    for number, line in lines(path):
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BadLine(path, number, str(error)) from None


def _parquet(path: Path) -> Iterator[tuple[int, EvidenceLine]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"trace {path} needs the package pyarrow, which is not installed; install the extra `parquet` "
            "(pip install -e '.[parquet]' in the clone) or let the run write JSON lines"
        ) from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = [name for name in COLUMNS if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                for record in batch.to_pylist():
                    number += 1
                    yield number, _converted(path, number, record)
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"trace {path}: {error}") from None


def _converted(path: Path, number: int, record: Mapping[str, object]) -> EvidenceLine:
    try:
        return msgspec.convert(record, EvidenceLine)
    except msgspec.ValidationError as error:
        raise BadLine(path, number, str(error)) from None
