"""Runs that differ in their seed alone, taken together: means over seeds, and differences with intervals that cover
another seed, which an interval over the requests of one run does not."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from headway.bench.intervals import spread_of
from headway.bench.pairing import ComparedRun


class Group(msgspec.Struct, frozen=True):
    """Runs of one configuration. `places`: which of the runs, `seeds` beside them."""

    name: str
    places: tuple[int, ...]
    seeds: tuple[int, ...]


class Between(msgspec.Struct, frozen=True):
    """A group against the first one. `pairs`: seeds that both have, whose differences were averaged; 0: none."""

    value: float
    low: float
    high: float
    pairs: int
    verdict: Literal["better", "worse", "same"]


class Pooled(msgspec.Struct, frozen=True):
    """One metric by group: the mean over the seeds, and half of its 95 % interval; None: not measured, or one seed."""

    name: str
    unit: str
    means: list[float | None]
    halves: list[float | None]
    differences: list[Between | None]


class SeedGroups(msgspec.Struct, frozen=True):
    """What is printed below the single runs."""

    groups: list[Group]
    metrics: list[Pooled]


class Measured(msgspec.Struct, frozen=True):
    """One metric of all runs."""

    name: str
    unit: str
    is_less_better: bool
    values: Sequence[float | None]


def pooled(runs: Sequence[ComparedRun], metrics: Sequence[Measured]) -> SeedGroups | None:
    """Return the groups of the runs, in the order of their first; None where every run is one of its own."""
    groups = _groups(runs)
    if all(len(group.seeds) == 1 for group in groups):
        return None
    return SeedGroups(groups, [_pooled(metric, groups) for metric in metrics])


def _groups(runs: Sequence[ComparedRun]) -> list[Group]:
    found: dict[bytes, list[int]] = {}
    for place, run in enumerate(runs):
        rest = {name: value for name, value in run.scenario.items() if name != "seed"}
        members = found.setdefault(msgspec.json.encode(rest, order="sorted"), [])
        if all(runs[other].summary.seed != run.summary.seed for other in members):  # the same run twice is one
            members.append(place)
    return [
        Group(_name(runs[places[0]].name, len(places)), tuple(places), tuple(runs[p].summary.seed or 0 for p in places))
        for places in found.values()
    ]


def _name(first: str, count: int) -> str:
    return first if count == 1 else f"{first} and {count - 1} more seeds" if count > 2 else f"{first} and another seed"


def _pooled(metric: Measured, groups: Sequence[Group]) -> Pooled:
    by_seed = [
        {
            seed: value
            for seed, place in zip(group.seeds, group.places, strict=True)
            if (value := metric.values[place]) is not None
        }
        for group in groups
    ]
    spreads = [spread_of(list(values.values())) if len(values) > 1 else None for values in by_seed]
    means = [sum(values.values()) / len(values) if values else None for values in by_seed]
    halves = [None if spread is None else spread[1] for spread in spreads]
    differences = [None, *(_between(metric, by_seed[0], other) for other in by_seed[1:])]
    return Pooled(metric.name, metric.unit, means, halves, differences)


def _between(metric: Measured, base: Mapping[int, float], other: Mapping[int, float]) -> Between | None:
    """Seed by seed where both have them, which takes out what the arrivals have in common; else by both spreads."""
    seeds = [seed for seed in base if seed in other]
    if len(seeds) > 1:
        value, half = spread_of([other[seed] - base[seed] for seed in seeds])
    elif len(base) > 1 and len(other) > 1:
        (first, wide), (second, wider) = spread_of(list(base.values())), spread_of(list(other.values()))
        value, half, seeds = second - first, math.hypot(wide, wider), []
    else:
        return None
    is_clear = abs(value) > half
    is_better = (value < 0) == metric.is_less_better
    return Between(
        value, value - half, value + half, len(seeds), ("better" if is_better else "worse") if is_clear else "same"
    )
