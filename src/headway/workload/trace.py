"""Rows of a trace as requests: a part of it, at another pace, more or fewer of them in the same time."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from headway.core.blockhash import cache_root
from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.ids import RequestId
from headway.core.units import Ns, ns_from_s
from headway.workload.mint import Asked, Mint, faster, scaled_times
from headway.workload.offered import Offered
from headway.workload.prompts import Prompt, Run, extend, run_value, runs_of
from headway.workload.rows import Row
from headway.workload.spec import ShareGpt, Trace

Reader: TypeAlias = Callable[[], Iterator[Row]]


class Copy(msgspec.Struct, frozen=True):
    """A row to send. `copy` 0 has the row's content, others have their own."""

    row: Row
    place: int  # in the file
    copy: int
    at_ns: Ns  # on the clock of the file


class TraceSource:
    """Open loop: every request at its time, whatever became of those before."""

    def __init__(self, spec: Trace, mint: Mint, read: Reader) -> None:
        self._spec, self._mint, self._read = spec, mint, read
        self._mints: dict[str, Mint] = {}  # of the models that rows name

    def first(self) -> Iterator[Offered]:
        """Every request."""
        spec, mint = self._spec, self._mint
        until = None if spec.count is None else spec.skip + spec.count
        copies = multiplied(islice(self._read(), spec.skip, until), spec, mint)
        start_ns, zero_ns = ns_from_s(spec.start_s), None
        times: Iterator[Ns] | None = None
        if isinstance(spec, ShareGpt) and spec.arrivals is not None:
            arrivals = faster(spec.arrivals, spec.rate_scale)
            times = scaled_times(spec, arrivals, mint.seed, mint.draw_key("arrival"))
        copy = None
        for copy in copies:
            zero_ns = copy.at_ns if zero_ns is None else zero_ns
            at_ns = start_ns + round((copy.at_ns - zero_ns) * spec.time_scale) if times is None else next(times)
            yield self._offer(copy, at_ns)
        if copy is None:
            raise nothing_left(spec, mint.name)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:  # noqa: ARG002  Source
        """A trace waits for nothing."""
        return None

    def _offer(self, copy: Copy, at_ns: Ns) -> Offered:
        row, spec = copy.row, self._spec
        mint = self._mint if row.model is None or spec.model else self._of(row.model)
        # Content is a trace's own, and a copy's own: the same hash ids in another file mean something else.
        root = cache_root(model=mint.model, salt=f"{mint.name}/{copy.copy}")
        key = f"{copy.place}" if not copy.copy else f"{copy.place}.{copy.copy}"
        return mint.offer(
            Asked(
                key,
                at_ns,
                extend(Prompt(), _runs(row, mint, key), root, mint.block_tokens),
                row.output_tokens,
                None if row.session is None else f"session-{mint.name}-{row.session}.{copy.copy}",
                root,
                row.tenant if spec.tenant == "default" else None,
            )
        )

    def _of(self, model: str) -> Mint:
        found = self._mints.get(model)
        if found is None:
            found = self._mints[model] = self._mint.for_model(model)
        return found


def nothing_left(spec: Trace, name: str) -> ConfigError:
    """What to raise for a trace of which nothing is sent."""
    return ConfigError(f"workload {name!r}: skip, rate_scale and filters leave no request of {spec.path}")


def multiplied(rows: Iterable[Row], spec: Trace, mint: Mint) -> Iterator[Copy]:
    """`rate_scale` times the requests in the same time. Below one, rows are drawn; above, each is sent as often as
    needed, its copies at uniform times before the next row, so that the shape of the load stays."""
    scale = 1.0 if isinstance(spec, ShareGpt) and spec.arrivals is not None else spec.rate_scale
    if scale == 1.0:
        yield from (Copy(row, spec.skip + place, 0, row.at_ns) for place, row in enumerate(rows))
        return
    held: Row | None = None
    place = spec.skip - 1
    for row in rows:
        if held is not None:
            yield from _copies(held, place, row.at_ns, scale, mint)
        held, place = row, place + 1
    if held is not None:
        yield from _copies(held, place, held.at_ns, scale, mint)


def _copies(row: Row, place: int, next_ns: Ns, scale: float, mint: Mint) -> list[Copy]:
    def draw(k: int) -> float:
        return draw_unit(mint.seed, mint.draw_key("copies"), place, k)

    count = math.floor(scale) + (draw(0) < scale - math.floor(scale))
    gap_ns = next_ns - row.at_ns
    copies = [Copy(row, place, k, row.at_ns + (math.floor(gap_ns * draw(k)) if k else 0)) for k in range(count)]
    return sorted(copies, key=lambda copy: (copy.at_ns, copy.copy))


def _runs(row: Row, mint: Mint, key: str) -> list[Run]:
    """Content that equals other content exactly as far as the trace says."""
    if row.tokens:
        return runs_of(row.tokens)
    left = row.input_tokens
    runs: list[Run] = []
    for block in row.blocks:
        runs.append(Run(block, min(row.block_tokens, left)))
        left -= runs[-1].count
    if row.shared_tokens:
        tenant = run_value(mint.seed, mint.draw_key(f"shared/{row.tenant}"))
        runs.append(Run(tenant, min(row.shared_tokens, left)))
        left -= runs[-1].count
    if left:
        runs.append(Run(run_value(mint.seed, mint.draw_key(f"own/{key}")), left))
    return runs
