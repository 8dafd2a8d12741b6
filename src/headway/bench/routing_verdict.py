"""Who wins a cell of the routing study, and whether by more than the noise over seeds."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

import msgspec

from headway.bench.routing_study import Result

Word = Literal["wins", "ties", "loses"]


class Verdict(msgspec.Struct, frozen=True):
    """`gain`: goodput over the best rival's, less 1. `noise`: what that may be off by, at about 95 %."""

    word: Word
    ours: float
    rival: str
    best: float
    gain: float
    noise: float
    seeds: int


def share(results: Sequence[Result]) -> float:
    """Goodput as a share of what was offered, over all seeds."""
    return fmean(result.summary.attainment for result in results)


def spread(results: Sequence[Result]) -> float:
    """Standard deviation over seeds; with a single seed that of drawing its requests."""
    if len(results) > 1:
        return stdev(result.summary.attainment for result in results)
    met = results[0].summary.attainment
    return math.sqrt(met * (1 - met) / results[0].summary.offered)


def noise_of(first: Sequence[Result], second: Sequence[Result]) -> float:
    """Two standard errors of the difference of two policies, in shares of what was offered.

    Over seeds the policies saw the same arrivals, so that differences pair up. It is never taken below the error of
    drawing as many requests: three seeds alone can agree by chance.
    """
    pairs = [(a.summary, b.summary) for a, b in zip(first, second, strict=True)]
    count = sum(a.offered for a, _ in pairs)
    met = fmean(s.attainment for pair in pairs for s in pair)
    drawn = math.sqrt(met * (1 - met) / count)  # same arrivals: half the variance of independent ones
    differences = [a.attainment - b.attainment for a, b in pairs]
    seen = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return 2 * max(drawn, seen)


def judge(ours: Sequence[Result], rivals: Mapping[str, Sequence[Result]]) -> Verdict:
    """Compare with the best rival of the cell, over the seeds that both have run."""
    seeds = {result.job.seed for result in ours}
    shared = {
        name: matched
        for name, results in rivals.items()
        if len(matched := [result for result in results if result.job.seed in seeds]) == len(seeds)
    }
    name = max(shared, key=lambda rival: (share(shared[rival]), rival))
    mine, best = share(ours), share(shared[name])
    noise = noise_of(ours, shared[name])
    word: Word = "ties" if abs(mine - best) <= noise else "wins" if mine > best else "loses"
    scale = best or 1.0
    return Verdict(word, mine, name, best, (mine - best) / scale, noise / scale, len(seeds))
