"""How alike a live run and its simulated twin are: decisions one by one, times by mean and quantile."""

import statistics
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

import msgspec

from headway.bench.outcome import Outcome
from headway.bench.recorded import Recorded, quiet_spells
from headway.bench.summary import Quantiles, nearest_rank, quantiles
from headway.core.ids import RequestId
from headway.core.units import Ns

METRICS = ("ttft", "tpot", "e2e")


class Times(msgspec.Struct, frozen=True):
    """One metric of the requests that both runs completed, in milliseconds."""

    live: Quantiles
    simulated: Quantiles

    def error(self, statistic: str) -> float | None:
        """Return (simulated - live) / live of `mean`, `p50` or `p99`."""
        live, simulated = getattr(self.live, statistic), getattr(self.simulated, statistic)
        return None if live is None or simulated is None or live == 0 else (simulated - live) / live


class Decisions(msgspec.Struct, frozen=True):
    """Requests by whether both runs decided the same about them.

    An arrival is contested when, in the simulation, it lies within `jitter_ns` of an event that it competes with.
    `close`: they differ, and their arrival, or one before their first token, is contested. `after`: they differ, and
    were under way after a close one had differed, without the system being empty between. `unexplained`: the rest,
    which a simulator that is right does not have.
    """

    equal: int
    close: tuple[RequestId, ...]
    after: tuple[RequestId, ...]
    unexplained: tuple[RequestId, ...]
    jitter_ns: Ns
    contested: int  # arrivals, whatever came of them

    @property
    def count(self) -> int:
        """All requests."""
        return self.equal + len(self.close) + len(self.after) + len(self.unexplained)


def times(live: Mapping[str, Outcome], simulated: Mapping[str, Outcome]) -> dict[str, Times]:
    """Compare TTFT, TPOT and end-to-end times of the requests that both completed."""
    both = [name for name, seen in live.items() if seen.error is None and simulated[name].error is None]
    out = {}
    for metric in METRICS:
        sides = ([_value(side[name], metric) for name in both] for side in (live, simulated))
        there, here = (quantiles([value for value in side if value is not None]) for side in sides)
        out[metric] = Times(there, here)
    return out


def _value(outcome: Outcome, metric: str) -> float | None:
    if metric == "e2e":
        return outcome.ended_ns - outcome.sent_ns
    return outcome.ttft_ns if metric == "ttft" else outcome.tpot_ns


def decisions(live: Recorded, simulated: Recorded, jitter_ns: Ns, left_out: Collection[RequestId] = ()) -> Decisions:
    """Compare what was decided about every request of the simulation, but for those that only warm up."""
    there = live.fates()
    here = {name: fate for name, fate in simulated.fates().items() if name not in left_out}
    differing = [request for request, fate in here.items() if there.get(request) != fate]
    front = simulated.front
    # A competitor that a step more or less moves may change others and keep its own decisions.
    contested = [(front.arrivals[name].at_ns, name) for name in here if margin_ns(simulated, name) <= jitter_ns]
    ends = {name: front.first_ns.get(name, front.ends[name][0]) for name in differing}
    close = [
        name
        for name in differing
        if any(front.arrivals[name].at_ns <= at_ns <= ends[name] or other == name for at_ns, other in contested)
    ]
    spells = quiet_spells(front)
    spoiled_ns: dict[int, Ns] = {}  # busy spell: since when something close has differed in it
    for request in close:
        at_ns = front.arrivals[request].at_ns
        spoiled_ns.setdefault(bisect_left(spells, at_ns), at_ns)
    after: list[RequestId] = []
    unexplained: list[RequestId] = []
    for request in differing:
        if request not in close:
            spell = bisect_left(spells, front.arrivals[request].at_ns)
            is_after = front.ends[request][0] >= spoiled_ns.get(spell, 1 << 62)
            (after if is_after else unexplained).append(request)
    return Decisions(
        len(here) - len(differing), tuple(close), tuple(after), tuple(unexplained), jitter_ns, len(contested)
    )


def jitter_ns(live: Recorded, planned_ns: Mapping[RequestId, Ns]) -> Ns:
    """Return how much nearer than planned two live events may come.

    It is the sum of the 99th percentiles of how far arrivals at the front stray from plan, and of how late nodes hear
    of their steps' results; what all of them have in common is left out.
    """
    late = [live.front.arrivals[request].at_ns - at_ns for request, at_ns in planned_ns.items()]
    lags = [
        heard_ns - told_ns
        for worker in live.replicas.values()
        for told_ns, heard_ns in zip(worker.told_ns.values(), worker.heard_ns, strict=True)
    ]
    return _stray(late) + _stray(lags)


def _stray(values: Sequence[Ns]) -> Ns:
    middle = statistics.median(values)
    return round(nearest_rank(sorted(abs(value - middle) for value in values), 0.99))


def margin_ns(run: Recorded, request: RequestId) -> Ns:
    """Return how far the nearest other event is from those that a request's decisions hang on.

    These are its arrival at the front, beside other arrivals and ends, and at its replica, beside the plans made there.
    """
    front = run.front
    at_ns = front.arrivals[request].at_ns
    moves = [other.at_ns for name, other in front.arrivals.items() if name != request]
    moves += [ended_ns for name, (ended_ns, _) in front.ends.items() if name != request]
    nearest = _nearest(sorted(moves), at_ns)
    for worker in run.replicas.values():
        received_ns = worker.received_ns.get(request)
        if received_ns is not None:
            # A plan at the very moment is the arrival's own, on an idle replica.
            plans = [planned_ns for planned_ns in worker.planned_ns if planned_ns != received_ns]
            nearest = min(nearest, _nearest(plans, received_ns))
    return nearest


def _nearest(ordered: Sequence[Ns], at_ns: Ns) -> Ns:
    place = bisect_left(ordered, at_ns)
    return min((abs(other - at_ns) for other in ordered[max(0, place - 1) : place + 1]), default=1 << 62)
