"""Turns the `[[workload]]` tables of a scenario into its clients."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from headway.core.errors import ConfigError
from headway.core.ids import RequestId
from headway.core.units import Ns
from headway.workload.mint import Mint, Served
from headway.workload.offered import Offered, Source
from headway.workload.sessions import SessionsSource
from headway.workload.spec import ClosedLoop, Sessions, Synthetic, WorkloadParams, names
from headway.workload.synthetic import ClosedLoopSource, SyntheticSource


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


def build(specs: Sequence[WorkloadParams], seed: int, served: Sequence[Served]) -> Source:
    """Build the clients of a scenario. `served`: the models of its pools, the default first. Nothing is
    drawn before `first` is pulled. Raises ConfigError."""
    if not specs:
        raise ConfigError("workload: a scenario has one or more tables [[workload]], each with a kind")
    return MergedSource(
        {name: _source(spec, Mint(spec, name, seed, served)) for name, spec in zip(names(specs), specs, strict=True)}
    )


def _source(spec: WorkloadParams, mint: Mint) -> Source:
    match spec:
        case Synthetic():
            return SyntheticSource(spec, mint)
        case Sessions():
            return SessionsSource(spec, mint)
        case ClosedLoop():
            return ClosedLoopSource(spec, mint)
        case _:
            assert_never(spec)
