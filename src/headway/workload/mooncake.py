"""The Mooncake conversation trace (FAST'25 release) as requests: its lengths, its shared blocks, its times rescaled.

A line is `{timestamp, input_length, output_length, hash_ids}`; a hash id stands for 512 prompt tokens and everything
before them. Prompts here are one token value per block, so that two prompts are equal as far as their hash ids are.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.core.blockhash import block_hashes, cache_root
from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams, Slo
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.workload.offered import Offered
from headway.workload.rows import BadLine, Row, checked, lines, ns_of
from headway.workload.stats import lru_reuse as reuse

BLOCK_TOKENS: Final = 512
QUANTUM_MS: Final = 3000.0  # the trace rounds its times to this: what arrives within one is spread over it


class TraceRow(msgspec.Struct, frozen=True):
    """One line of the trace."""

    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class Deadlines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TTFT = `ttft_ms` + `ttft_ms_per_1k` per thousand prompt tokens (SMetric, arXiv 2607.08565), and TPOT."""

    ttft_ms: float = 1000.0
    ttft_ms_per_1k: float = 125.0
    tpot_ms: float = 50.0

    def ttft_ns(self, prompt_tokens: int) -> Ns:
        """Time to the first token that a prompt of this length is promised."""
        return round((self.ttft_ms + self.ttft_ms_per_1k * prompt_tokens / 1000) * NS_PER_MS)


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Consecutive rows, replayed so that they bring `prompt_tokens_per_s` on average. `seed` moves the times."""

    skip: int = 0
    count: int = 1500
    prompt_tokens_per_s: float = 100_000.0
    seed: int = 0
    max_tokens: int = 2048  # the limit that clients send; how long an answer gets is not told
    deadlines: Deadlines = Deadlines()


def read_trace(path: Path) -> list[TraceRow]:
    """Read the whole trace. Raises ConfigError for a file that is not one."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror}; it is named in data/SOURCES.md") from None
    decoder = msgspec.json.Decoder(TraceRow)
    rows: list[TraceRow] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigError(f"trace {path}, line {number}: {error}") from None
    return rows


def prompt_of(row: TraceRow) -> tuple[int, ...]:
    """Return a prompt that equals another one exactly as far as their hash ids are equal."""
    tokens: list[int] = []
    for block in row.hash_ids:
        tokens += [block] * min(BLOCK_TOKENS, row.input_length - len(tokens))
    if len(tokens) != row.input_length:
        raise ConfigError(f"a row of {row.input_length} tokens has {len(row.hash_ids)} blocks of {BLOCK_TOKENS}")
    return tuple(tokens)


def times_ns(rows: Sequence[TraceRow], part: Slice) -> list[Ns]:
    """Return when each row arrives: spread over the quantum of the trace, in order, at the rate of the slice."""
    spread = sorted(
        row.timestamp + QUANTUM_MS * draw_unit(part.seed, "arrival", 0, place) for place, row in enumerate(rows)
    )
    tokens = sum(row.input_length for row in rows)
    first, last = spread[0], spread[-1]
    scale = tokens / part.prompt_tokens_per_s * NS_PER_S / max(1.0, last - first)
    return [NS_PER_MS + round((at - first) * scale) for at in spread]


def requests(rows: Sequence[TraceRow], part: Slice, model: str) -> Iterator[Offered]:
    """Yield the requests of a slice in the order of their arrival. Raises ConfigError for a slice beyond the trace."""
    chosen = rows[part.skip : part.skip + part.count]
    if len(chosen) < part.count:
        raise ConfigError(f"rows {part.skip} to {part.skip + part.count} are beyond the {len(rows)} of the trace")
    root, due = cache_root(model=model), part.deadlines
    for place, (row, at_ns) in enumerate(zip(chosen, times_ns(chosen, part), strict=True)):
        prompt = prompt_of(row)
        request = LlmRequest(
            id=RequestId(f"req-{part.skip + place}"),
            tenant=TenantId("default"),
            model=ModelId(model),
            prompt=prompt,
            sampling=SamplingParams(max_tokens=part.max_tokens, temperature=0),
            arrived_ns=at_ns,
            slo=Slo(at_ns + due.ttft_ns(len(prompt)), round(due.tpot_ms * NS_PER_MS)),
            block_hashes=block_hashes(root, prompt, BLOCK_TOKENS),
            block_tokens=BLOCK_TOKENS,
            cache_root=root,
        )
        yield Offered(request, min(row.output_length, part.max_tokens))


def lru_reuse(rows: Iterable[TraceRow], capacity_blocks: int | None) -> float:
    """Return the share of blocks found in one cache of least recently used blocks; None: it keeps all.

    What a single cache in front of everything would hit: no fleet can hit more of its total capacity.
    """
    return reuse((row.hash_ids for row in rows), capacity_blocks)


def rows(path: Path) -> Iterator[Row]:
    """Yield the requests of a file one by one, at the times that it says. Raises ConfigError."""
    return checked(_rows(path), path)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    decoder = msgspec.json.Decoder(TraceRow)
    for number, line in lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BadLine(path, number, str(error)) from None
        at_ns = ns_of(path, number, row.timestamp, NS_PER_MS)
        yield number, Row(at_ns, row.input_length, row.output_length, row.hash_ids, BLOCK_TOKENS)
