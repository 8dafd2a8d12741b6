"""Which request of one run is which of another: what makes differences those of the runs and not of their arrivals."""

from collections.abc import Mapping

import msgspec
import numpy as np

from headway.bench.columns import Columns
from headway.bench.ends import Floats, Ints
from headway.bench.run_summary import RunSummary


class ComparedRun(msgspec.Struct, frozen=True):
    """One run; ids and columns of the requests that ended, in the order of arrival."""

    name: str
    summary: RunSummary
    scenario: dict[str, object]
    ids: tuple[str, ...]
    columns: Columns


class Lineup(msgspec.Struct, frozen=True):
    """Every request that was sent, as places in the columns of two runs; -1: it has not ended there."""

    base: Ints
    other: Ints
    is_paired: bool  # place by place the same request; else each has an order of its own


def line_up(base: ComparedRun, other: ComparedRun) -> Lineup:
    """Pair the requests of two runs, if they were sent the same ones; closed loops may have sent them at other times.

    A request that only one run has is one that the other left open; some are open in both. When that does not account
    for all that was sent, the two are not paired.
    """
    ours, theirs = (dict(zip(run.ids, range(len(run.ids)), strict=True)) for run in (base, other))
    union = _in_order(base, other, ours, theirs)
    open_ours = base.summary.unfinished - (len(union) - len(ours))  # beside those that the other has ended
    open_theirs = other.summary.unfinished - (len(union) - len(theirs))
    ended_all = len(ours) == len(union) == len(theirs)
    is_same = _workload(base) == _workload(other) or (ended_all and _same_draw(base, other, ours, theirs))
    if is_same and open_ours == open_theirs >= 0 and _same_prompts(base, other, ours, theirs):
        first, second = (
            np.array([*(places.get(name, -1) for name in union), *([-1] * open_ours)], dtype=np.int64)
            for places in (ours, theirs)
        )
        return Lineup(first, second, True)
    return Lineup(_alone(base), _alone(other), False)


def _in_order(base: ComparedRun, other: ComparedRun, ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    sent = dict(zip(other.ids, other.columns.floats("sent_ns").tolist(), strict=True))
    sent |= zip(base.ids, base.columns.floats("sent_ns").tolist(), strict=True)
    return sorted({**ours, **theirs}, key=lambda name: (sent[name], name))


def _workload(run: ComparedRun) -> tuple[object, object]:
    return run.scenario.get("workload"), run.scenario.get("seed")


def _same_draw(base: ComparedRun, other: ComparedRun, ours: Mapping[str, int], theirs: Mapping[str, int]) -> bool:
    """Of one seed, or sent at the same times as a trace has them: names alone are counted from 0 in every run."""
    if base.scenario.get("seed") == other.scenario.get("seed"):
        return True
    first, second = (
        run.columns.floats("sent_ns")[[places[name] for name in ours]]
        for run, places in ((base, ours), (other, theirs))
    )
    return bool((first == second).all())


def _same_prompts(base: ComparedRun, other: ComparedRun, ours: Mapping[str, int], theirs: Mapping[str, int]) -> bool:
    names = [name for name in ours if name in theirs]
    if not names:
        return False
    first, second = (
        run.columns.floats("prompt_tokens")[[places[name] for name in names]]
        for run, places in ((base, ours), (other, theirs))
    )
    return bool((first == second).all())


def _alone(run: ComparedRun) -> Ints:
    """The requests of one run, those that it left open last: they arrived somewhere, nobody knows where."""
    return np.concatenate([np.arange(len(run.ids)), np.full(run.summary.unfinished, -1)]).astype(np.int64)


def at(places: Ints, values: Floats, fill: float) -> Floats:
    """Return the value of each place, and `fill` for requests that have not ended."""
    out = np.full(len(places), fill)
    ended = places >= 0
    out[ended] = values[places[ended]]
    return out
