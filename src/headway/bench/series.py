"""A run over virtual time: load, queues, service and goodput in a bounded number of bins.

What requests did is cut from their evidence, exact for every bin; what pools held comes from samples of the simulator.
Neither touches the run.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from headway.bench.columns import Columns, SpanName
from headway.bench.ends import Floats, Mask
from headway.core.units import NS_PER_S, Ns

BINS_MAX: Final = 240
BIN_REQUESTS: Final = 15  # on average: fewer draw noise and not load
BINS_FEW: Final = 30
TENANTS_MAX: Final = 8  # told apart; the others are one
OTHERS: Final = "(others)"


class PoolSample(Protocol):
    """One look at one pool: shares of its KV blocks in use, and of its device time since the look before."""

    @property
    def at_ns(self) -> Ns: ...

    @property
    def pool(self) -> str: ...

    @property
    def up(self) -> int: ...

    @property
    def waiting(self) -> float: ...

    @property
    def running(self) -> float: ...

    @property
    def kv_used(self) -> float: ...

    @property
    def busy(self) -> float: ...


class PoolPoint(msgspec.Struct, frozen=True):
    """A pool in one bin: mean requests there, and the means of its samples. None: no sample fell into it.

    Requests are counted from their evidence, which names the replica that ended them. Where prefill and decode are
    pools of their own that is half of the truth, and requests that are still open have none: then samples count.
    """

    waiting: float | None
    running: float | None
    replicas: float | None = None
    kv_used: float | None = None
    busy: float | None = None


class Point(msgspec.Struct, frozen=True):
    """One bin. Rates count what arrived or ended in it; numbers of requests are means over it."""

    from_s: float
    to_s: float
    arrivals_per_s: float
    ended_per_s: float
    failed_per_s: float
    goodput_per_s: float
    output_tokens_per_s: float
    in_system: float  # arrived and not ended
    front_waiting: float | None  # None: open requests stood somewhere, and no sample says where
    pools: dict[str, PoolPoint]
    tenants: dict[str, float]  # tokens served per second: prompt tokens computed and output tokens

    @property
    def waiting(self) -> float:
        """Requests in all queues, as far as known."""
        return (self.front_waiting or 0.0) + sum(pool.waiting or 0.0 for pool in self.pools.values())


class Run(msgspec.Struct, frozen=True):
    """What the series of a run is made of. `open_ns`: when the requests were sent that have not ended."""

    columns: Columns
    virtual_s: float
    samples: Sequence[PoolSample] = ()
    open_ns: Sequence[float] = ()


def series(run: Run, bins_max: int = BINS_MAX) -> list[Point]:
    """Return the bins of a run, equally wide. What open requests were given is in none of them."""
    columns, count = run.columns, run.columns.count + len(run.open_ns)
    if not count or run.virtual_s <= 0:
        return []
    bins = max(1, min(bins_max, count, max(BINS_FEW, count // BIN_REQUESTS)))
    edges_ns = np.linspace(0, run.virtual_s * NS_PER_S, bins + 1)
    width_s = run.virtual_s / bins
    open_ns = np.array(run.open_ns, dtype=np.float64)
    sent_ns = np.concatenate([columns.floats("sent_ns"), open_ns])
    ended_ns, completed = columns.floats("ended_ns"), columns.completed
    gone_ns = np.concatenate([ended_ns, np.full(len(open_ns), edges_ns[-1])])
    ran = columns.span("run")
    whole = {
        "arrivals_per_s": _happened(sent_ns, edges_ns) / width_s,
        "ended_per_s": _happened(ended_ns, edges_ns) / width_s,
        "failed_per_s": _happened(ended_ns[~completed], edges_ns) / width_s,
        "goodput_per_s": _happened(ended_ns[columns.claim("met")], edges_ns) / width_s,
        "output_tokens_per_s": _spread(ran, columns.floats("output_tokens"), edges_ns),
        "in_system": _spread((sent_ns, gone_ns), gone_ns - sent_ns, edges_ns) / NS_PER_S,
    }
    pools, tenants = _pools(run, edges_ns), _tenants(columns, edges_ns)
    if run.open_ns:
        front = _elsewhere(whole["in_system"], pools)
    else:
        front = list(_stood(columns, "front", np.ones(columns.count, dtype=np.bool_), edges_ns).tolist())
    return [
        Point(
            from_s=float(edges_ns[place]) / NS_PER_S,
            to_s=float(edges_ns[place + 1]) / NS_PER_S,
            **{name: float(found[place]) for name, found in whole.items()},
            front_waiting=front[place],
            pools={name: found[place] for name, found in pools.items()},
            tenants={name: float(found[place]) for name, found in tenants.items()},
        )
        for place in range(bins)
    ]


def _elsewhere(in_system: Floats, pools: Mapping[str, Sequence[PoolPoint]]) -> list[float | None]:
    """How many of those in the system are in no pool; None where a pool was not looked at."""
    out: list[float | None] = []
    for place, count in enumerate(in_system.tolist()):
        there = [part for found in pools.values() for part in (found[place].waiting, found[place].running)]
        known = [part for part in there if part is not None]
        out.append(max(0.0, count - sum(known)) if len(known) == len(there) else None)
    return out


def _happened(times_ns: Floats, edges_ns: Floats) -> Floats:
    """How many of the times fall into each bin; the last bin holds its end."""
    return np.histogram(times_ns, edges_ns)[0].astype(np.float64)


def _covered(start_ns: Floats, weight: Floats, at_ns: Floats) -> Floats:
    """Sum over all that began of weight x time since, at each of some times. O(n log n)."""
    order = np.argsort(start_ns)
    began, mass = start_ns[order], weight[order]
    upto = np.concatenate([[0.0], np.cumsum(mass)])
    moment = np.concatenate([[0.0], np.cumsum(mass * began)])
    place = np.searchsorted(began, at_ns)
    return np.asarray(upto[place] * at_ns - moment[place], dtype=np.float64)


def _spread(span_ns: tuple[Floats, Floats], amount: Floats, edges_ns: Floats) -> Floats:
    """Amounts per second in each bin, each amount spread evenly over its span; nothing where a span is empty or nan."""
    start, end = span_ns
    some = end > start
    start, end = start[some], end[some]
    rate = amount[some] / (end - start)
    integral = _covered(start, rate, edges_ns) - _covered(end, rate, edges_ns)
    return np.maximum(0.0, np.diff(integral)) / (edges_ns[1:] - edges_ns[:-1]) * NS_PER_S


def _stood(columns: Columns, span: SpanName, among: Mask, edges_ns: Floats) -> Floats:
    """Mean number of requests in a span, in each bin."""
    start, end = (edge[among] for edge in columns.span(span))
    return _spread((start, end), end - start, edges_ns) / NS_PER_S


def _pools(run: Run, edges_ns: Floats) -> dict[str, list[PoolPoint]]:
    columns, samples = run.columns, run.samples
    known = columns.names("pool")
    is_sampled = bool(run.open_ns) or any(sample.busy > 0 for sample in samples if sample.pool not in known)
    fields = [("replicas", "up"), ("kv_used", "kv_used"), ("busy", "busy")]
    if is_sampled:
        fields += [("waiting", "waiting"), ("running", "running")]
    out = {}
    for name in sorted({*known, *(sample.pool for sample in samples)}):
        among = np.equal(columns.codes("pool"), known.get(name, -1))
        looks = [sample for sample in samples if sample.pool == name]
        at_ns = np.array([sample.at_ns for sample in looks], dtype=np.float64)
        place = np.clip(np.searchsorted(edges_ns, at_ns) - 1, 0, len(edges_ns) - 2)
        means: dict[str, list[float | None]] = {
            field: _means(place, [getattr(sample, found) for sample in looks], len(edges_ns) - 1)
            for field, found in fields
        }
        if not is_sampled:
            means["waiting"] = list(_stood(columns, "engine", among, edges_ns).tolist())
            means["running"] = list(_stood(columns, "run", among, edges_ns).tolist())
        out[name] = [
            PoolPoint(**{field: found[bin] for field, found in means.items()}) for bin in range(len(edges_ns) - 1)
        ]
    return out


def _means(
    place: "np.ndarray[tuple[int], np.dtype[np.int64]]", values: Sequence[float], bins: int
) -> list[float | None]:
    count = np.bincount(place, minlength=bins)
    total = np.bincount(place, weights=np.array(values, dtype=np.float64), minlength=bins)
    return [float(total[bin] / count[bin]) if count[bin] else None for bin in range(bins)]


def _tenants(columns: Columns, edges_ns: Floats) -> Mapping[str, Floats]:
    run = columns.span("run")
    tokens = columns.floats("prompt_tokens") - columns.floats("cached_tokens") + columns.floats("output_tokens")
    codes, known = columns.codes("tenant"), columns.names("tenant")
    served = {name: float(tokens[codes == code].sum()) for name, code in known.items()}
    shown = sorted(served, key=lambda name: (-served[name], name))[:TENANTS_MAX]
    out = {}
    for name in shown:
        among = codes == known[name]
        out[name] = _spread((run[0][among], run[1][among]), tokens[among], edges_ns)
    if len(known) > len(shown):
        among = ~np.isin(codes, [known[name] for name in shown])
        out[OTHERS] = _spread((run[0][among], run[1][among]), tokens[among], edges_ns)
    return out
