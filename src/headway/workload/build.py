"""Turns the `[[workload]]` tables of a scenario into its clients."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import assert_never

from headway.core.errors import ConfigError
from headway.core.ids import RequestId
from headway.core.units import Ns
from headway.workload import azure, burstgpt, mooncake, qwen, replay, sharegpt
from headway.workload.diffusion import DiffusionSource
from headway.workload.mint import Mint, Served
from headway.workload.offered import Offered, Source
from headway.workload.rows import check_readable, spread
from headway.workload.sessions import SessionsSource
from headway.workload.sharegpt import ShareGptSource
from headway.workload.spec import (
    Azure,
    BurstGpt,
    ClosedLoop,
    Diffusion,
    LanguageParams,
    Mooncake,
    Qwen,
    Replay,
    Sessions,
    ShareGpt,
    Synthetic,
    WorkloadParams,
    names,
)
from headway.workload.synthetic import ClosedLoopSource, SyntheticSource
from headway.workload.trace import TraceSource


class MergedSource:
    """Several workloads as one, in the order of arrival; equal times in the order of the scenario."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        """`sources`: by the name that the ids of their requests have (`req-NAME-...`)."""
        self._sources = sources

    def first(self) -> Iterator[Offered]:
        """Every workload's first requests, merged as they are pulled."""
        return heapq.merge(*(source.first() for source in self._sources.values()), key=_arrival)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:
        """What the request's own workload sends next."""
        return self._sources[request.split("-", 2)[1]].after(request, ended_ns, answer)


def _arrival(offered: Offered) -> Ns:
    return offered.request.arrived_ns


def build(specs: Sequence[WorkloadParams], seed: int, served: Sequence[Served], folder: Path = Path()) -> Source:
    """Build the clients of a scenario. `served`: the models of its pools, the default first; `folder`: where paths of
    traces begin, that of the scenario file. Files are opened to see that they can be; they are read as `first` is
    pulled. Raises ConfigError."""
    if not specs:
        raise ConfigError("workload: a scenario has one or more tables [[workload]], each with a kind")
    return MergedSource(
        {
            name: DiffusionSource(spec, name, seed, served)
            if isinstance(spec, Diffusion)
            else _source(spec, Mint(spec, name, seed, served), folder)
            for name, spec in zip(names(specs), specs, strict=True)
        }
    )


def _source(spec: LanguageParams, mint: Mint, folder: Path) -> Source:
    match spec:
        case Synthetic():
            return SyntheticSource(spec, mint)
        case Sessions():
            return SessionsSource(spec, mint)
        case ClosedLoop():
            return ClosedLoopSource(spec, mint)
        case _:
            path = folder / spec.path
            check_readable(path)
            return _trace(spec, mint, path)


def _trace(
    spec: Mooncake | Azure | BurstGpt | Qwen | ShareGpt | Replay, mint: Mint, path: Path
) -> TraceSource | ShareGptSource:
    match spec:
        case Mooncake():
            key = mint.draw_key("quantum")
            return TraceSource(spec, mint, lambda: spread(mooncake.rows(path), spec.quantum_ms, mint.seed, key))
        case Azure():
            return TraceSource(spec, mint, lambda: azure.rows(path))
        case BurstGpt():
            key = mint.draw_key("quantum")
            found = partial(burstgpt.rows, path, spec.models, spec.log_types)
            return TraceSource(spec, mint, lambda: spread(found(), spec.quantum_ms, mint.seed, key))
        case Qwen():
            return TraceSource(spec, mint, lambda: qwen.rows(path, spec.types))
        case Replay():
            return TraceSource(spec, mint, lambda: replay.rows(path, spec))
        case ShareGpt():
            return _sharegpt(spec, mint, path)
        case _:
            assert_never(spec)


def _sharegpt(spec: ShareGpt, mint: Mint, path: Path) -> TraceSource | ShareGptSource:
    if path.suffix == ".jsonl":
        return TraceSource(spec, mint, lambda: sharegpt.rows(path, spec.arrivals is None))
    if spec.arrivals is None:
        raise ConfigError(f"workload {mint.name!r}: {path} has texts and no times; set its `arrivals`")
    return ShareGptSource(spec, spec.arrivals, mint, path)
