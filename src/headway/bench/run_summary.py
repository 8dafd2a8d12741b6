"""A simulated run in numbers: `summary.json`. Every request that arrived counts, those that did not end as misses."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from headway.bench.columns import Columns
from headway.bench.ends import Floats, Mask
from headway.bench.gap_counts import GapCounts
from headway.bench.series import PoolSample
from headway.bench.summary import Quantiles, Summary, jain, nearest_rank
from headway.core.units import NS_PER_MS, NS_PER_S, Ns

TARGETS: Final = ("ttft", "tpot", "e2e", "deadlines")


class GroupSummary(msgspec.Struct, frozen=True):
    """Some of a run's requests: those of a tenant, a workload or a pool. Times as in the whole."""

    sent: int
    completed: int
    attainment: float
    goodput_per_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    queue_ms: Quantiles
    images: int = 0
    video_s: float | None = None  # seconds of video; None: none came whose frames per second are known


class PoolUse(msgspec.Struct, frozen=True):
    """What the replicas of a pool did, over the whole run."""

    replicas: int
    devices: int
    busy: float  # share of the time that its devices ran steps
    kv_peak: float | None = None  # largest share of its KV blocks in use at once, as sampled; None: it has none
    counters: dict[str, int] = {}  # summed over its replicas: steps, preemptions, prefix hit tokens, ...
    waiting: float = 0.0  # mean requests in its replicas' own queues, as sampled
    running: float = 0.0
    kv_used: float | None = None  # mean share of its KV blocks in use, without what only the prefix cache holds
    device_hours: float = 0.0
    cost_usd: float = 0.0  # at the catalogue's prices


class RunSummary(Summary, frozen=True, kw_only=True):
    """Times of requests that waited for a cold replica are in `cold` alone (SPEC I2)."""

    complete: bool = True  # False: interrupted; what had ended is counted, the rest is `unfinished`
    unfinished: int = 0
    oldest_unfinished_s: float = 0.0
    virtual_s: float = 0.0
    offered_per_s: float = 0.0  # from the first to the last arrival
    goodput_offered_per_s: float = 0.0  # attainment of that: goodput without the time in which the run only drains
    refused: int = 0  # ended without a replica
    preemptions: int = 0
    prefix_hit_rate: float = 0.0  # cached over prompt tokens of the requests that a replica served
    queue_ms: Quantiles = Quantiles(0)  # front, engine and preempted together
    itl_top10_ms: Quantiles = Quantiles(0)  # per request: mean of its longest tenth of gaps
    itl_max_ms: Quantiles = Quantiles(0)  # per request
    attained: dict[str, float | None] = msgspec.field(
        default_factory=dict
    )  # share of all that met one target alone; None: nobody was promised it
    jain_tenants: float | None = None  # of tokens served over tokens asked for; None: one tenant
    cold: GroupSummary | None = None
    workloads: dict[str, GroupSummary] = msgspec.field(default_factory=dict)
    tenants: dict[str, GroupSummary] = msgspec.field(default_factory=dict)
    pools: dict[str, GroupSummary] = msgspec.field(default_factory=dict)
    pool_use: dict[str, PoolUse] = msgspec.field(default_factory=dict)
    decisions: dict[str, int] = msgspec.field(default_factory=dict)  # by "layer/kind"
    policies: dict[str, str] = msgspec.field(default_factory=dict)  # which decided, by their key
    seed: int | None = None
    config_hash: str = ""
    headway: str = ""  # version
    warmup_s: float = 0.0  # what was sent before is in the files, and in no figure here
    arrived: int = 0  # warm-up included
    wall_s: float = 0.0
    cpu_s: float = 0.0
    gateway_busy: float = 0.0  # share of its CPU; above 1 it could not stream so much, and would be the limit
    jumps: bool = True  # rows that decode on were counted, not visited
    requests_per_cpu_s: float = 0.0  # ended, with all that this summary and the files tell of them


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that has not ended when the run has: a miss, and its age counts as its time (REFERENCE 1)."""

    age_ns: Ns
    ttft_ns: Ns | None = None  # None: no token yet, so that its age counts
    tenant: str = ""
    workload: str = ""
    wanted_tokens: int = 0  # prompt and output
    served_tokens: int = 0  # of these, so far

    @property
    def first_ms(self) -> float:
        """Time to the first token, or so far without one."""
        return (self.age_ns if self.ttft_ns is None else self.ttft_ns) / NS_PER_MS


class Closing(msgspec.Struct, frozen=True):
    """What a run knows at its end beside its requests that have ended."""

    virtual_s: float
    unfinished: tuple[OpenRequest, ...] = ()
    complete: bool = True
    pool_use: Mapping[str, PoolUse] = {}
    samples: Sequence[PoolSample] = ()
    decisions: Mapping[str, int] = {}  # none: what the sink has counted
    policies: Mapping[str, str] = {}
    seed: int | None = None
    config_hash: str = ""
    headway: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    gateway_busy: float = 0.0
    jumps: bool = True


def spread(values: Floats, censored: Sequence[float] = ()) -> Quantiles:
    """Summarise times in milliseconds; nan: does not apply. `censored`: what has lasted so long, and goes on."""
    ordered = np.sort(np.concatenate([values[~np.isnan(values)], np.array(censored, dtype=np.float64)]))
    if not len(ordered):
        return Quantiles(0)
    p50, p95, p99 = (float(nearest_rank(ordered, share)) for share in (0.50, 0.95, 0.99))  # type: ignore[arg-type]  # an array is a sequence of floats here
    return Quantiles(len(ordered), float(ordered.mean()), p50, p95, p99, float(ordered[-1]))


def summarise_run(everything: Columns, gaps: GapCounts, closing: Closing, warmup_ns: Ns = 0) -> RunSummary:
    """Summarise a run. The clock runs from the first request sent to the last one ended, or to the interruption.

    Requests sent before `warmup_ns` are left out, as they must be of `gaps`.
    """
    now_ns = closing.virtual_s * NS_PER_S
    columns = everything.select(everything.floats("sent_ns") >= warmup_ns) if warmup_ns else everything
    late = tuple(request for request in closing.unfinished if now_ns - request.age_ns >= warmup_ns)
    load = _load(columns, gaps, closing, late)
    per_s = 1 / load.duration_s if load.duration_s > 0 else 0.0
    offered_per_s = _offered(columns.floats("sent_ns"), [now_ns - request.age_ns for request in late])
    cold, served = columns.claim("cold_start"), columns.codes("replica") > 0
    asked = float(columns.floats("prompt_tokens")[served].sum())
    return RunSummary(
        **msgspec.structs.asdict(load),
        complete=closing.complete,
        unfinished=len(late),
        oldest_unfinished_s=max((request.age_ns for request in late), default=0) / NS_PER_S,
        virtual_s=closing.virtual_s,
        offered_per_s=offered_per_s,
        goodput_offered_per_s=load.attainment * offered_per_s,
        refused=int((~served & ~columns.completed).sum()),
        preemptions=int(columns.floats("preemptions").sum()),
        prefix_hit_rate=float(columns.floats("cached_tokens")[served].sum()) / asked if asked else 0.0,
        queue_ms=spread(columns.floats("queue_wait_ms")[served]),
        itl_top10_ms=spread(columns.floats("itl_top10_ms")[columns.completed]),
        itl_max_ms=spread(columns.floats("itl_max_ms")[columns.completed]),
        attained={name: _attained(columns, f"met_{name}", load.sent) for name in TARGETS},
        jain_tenants=_fairness(columns, _by(late, "tenant")),
        cold=_group(columns, cold, cold, per_s) if cold.any() else None,
        workloads=_groups(columns, "workload", per_s, _by(late, "workload")),
        tenants=_groups(columns, "tenant", per_s, _by(late, "tenant")),
        pools=_groups(columns, "pool", per_s, {}),
        pool_use=dict(closing.pool_use),
        decisions=dict(sorted(closing.decisions.items())),
        policies=dict(closing.policies),
        seed=closing.seed,
        config_hash=closing.config_hash,
        headway=closing.headway,
        warmup_s=warmup_ns / NS_PER_S,
        arrived=everything.count + len(closing.unfinished),
        wall_s=closing.wall_s,
        cpu_s=closing.cpu_s,
        gateway_busy=closing.gateway_busy,
        jumps=closing.jumps,
        requests_per_cpu_s=everything.count / closing.cpu_s if closing.cpu_s else 0.0,
    )


def _load(columns: Columns, gaps: GapCounts, closing: Closing, unfinished: Sequence[OpenRequest]) -> Summary:
    """What a load on a server says of itself too; what has not ended was sent and missed."""
    sent_ns, ended_ns = columns.floats("sent_ns"), columns.floats("ended_ns")
    begun_s = float(sent_ns.min()) / NS_PER_S if columns.count else 0.0
    over_s = closing.virtual_s if unfinished or not columns.count else float(ended_ns.max()) / NS_PER_S
    duration_s = max(0.0, over_s - begun_s)
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    completed, met = columns.completed, int(columns.claim("met").sum())
    hot, errors = completed & ~columns.claim("cold_start"), columns.codes("error")
    sent = columns.count + len(unfinished)
    return Summary(
        sent=sent,
        completed=int(completed.sum()),
        errors={name: count for name, code in columns.names("error").items() if (count := int((errors == code).sum()))},
        duration_s=duration_s,
        requests_per_s=float(completed.sum()) * per_s,
        output_tokens_per_s=float(columns.floats("output_tokens").sum()) * per_s,
        images_per_s=float(columns.floats("images").sum()) * per_s or None,
        video_s_per_s=float(np.nansum(columns.floats("video_s"))) * per_s or None,
        ttft_ms=spread(columns.floats("client_ttft_ms")[hot], [request.first_ms for request in unfinished]),
        tpot_ms=spread(columns.floats("client_tpot_ms")[hot]),
        itl_ms=gaps.quantiles(),
        e2e_ms=spread(columns.floats("client_e2e_ms")[hot], [request.age_ns / NS_PER_MS for request in unfinished]),
        attainment=met / sent if sent else 0.0,
        goodput_per_s=met * per_s,
    )


def _offered(ended_ns: Floats, unfinished_ns: Sequence[float]) -> float:
    """Arrivals per second, from the first to the last; both are times of sending."""
    sent_ns = np.concatenate([ended_ns, np.array(unfinished_ns, dtype=np.float64)])
    span_s = (float(sent_ns.max()) - float(sent_ns.min())) / NS_PER_S if len(sent_ns) else 0.0
    return (len(sent_ns) - 1) / span_s if span_s > 0 else 0.0


def _attained(columns: Columns, claim: str, sent: int) -> float | None:
    if not columns.applies(claim).any():
        return None
    return float(columns.claim(claim).sum()) / sent


def _by(unfinished: Sequence[OpenRequest], kind: Literal["tenant", "workload"]) -> dict[str, list[OpenRequest]]:
    out: dict[str, list[OpenRequest]] = {}
    for request in unfinished:
        out.setdefault(request.tenant if kind == "tenant" else request.workload, []).append(request)
    return out


def _groups(
    columns: Columns, kind: str, per_s: float, unfinished: Mapping[str, Sequence[OpenRequest]]
) -> dict[str, GroupSummary]:
    codes, hot, known = columns.codes(kind), ~columns.claim("cold_start"), columns.names(kind)
    return {
        name: _group(columns, codes == known.get(name, -1), hot, per_s, unfinished.get(name, ()))
        for name in sorted({*known, *unfinished})
    }


def _group(
    columns: Columns, members: Mask, timed: Mask, per_s: float, unfinished: Sequence[OpenRequest] = ()
) -> GroupSummary:
    completed, met = columns.completed & members, columns.claim("met") & members
    sent, shown = int(members.sum()) + len(unfinished), completed & timed

    def total(name: str) -> int:
        return int(columns.floats(name)[members].sum())

    return GroupSummary(
        sent=sent,
        completed=int(completed.sum()),
        attainment=float(met.sum()) / sent if sent else 0.0,
        goodput_per_s=float(met.sum()) * per_s,
        prompt_tokens=total("prompt_tokens"),
        cached_tokens=total("cached_tokens"),
        output_tokens=total("output_tokens"),
        ttft_ms=spread(columns.floats("client_ttft_ms")[shown], [request.first_ms for request in unfinished]),
        tpot_ms=spread(columns.floats("client_tpot_ms")[shown]),
        e2e_ms=spread(columns.floats("client_e2e_ms")[shown], [request.age_ns / NS_PER_MS for request in unfinished]),
        images=total("images"),
        video_s=float(np.nansum(columns.floats("video_s")[members])) or None,
        queue_ms=spread(columns.floats("queue_wait_ms")[members & (columns.codes("replica") > 0)]),
    )


def _fairness(columns: Columns, unfinished: Mapping[str, Sequence[OpenRequest]]) -> float | None:
    """Jain's index of tokens served, normalised by what each tenant wanted, refused and open ones too (REFERENCE 1).

    Where nobody knows what a request wanted, it is its prompt and what it was given.
    """
    codes, known = columns.codes("tenant"), columns.names("tenant")
    tenants = {*known, *unfinished}
    if len(tenants) < 2:
        return None
    prompt, output = columns.floats("prompt_tokens"), columns.floats("output_tokens")
    wanted = prompt + np.maximum(output, columns.floats("wanted_tokens"))
    served = np.where(columns.completed, prompt + output, 0.0)
    shares = []
    for name in sorted(tenants):
        among, late = codes == known.get(name, -1), unfinished.get(name, ())
        asked = float(wanted[among].sum()) + sum(request.wanted_tokens for request in late)
        if asked > 0:
            given = float(served[among].sum()) + sum(request.served_tokens for request in late)
            shares.append(given / asked)
    return jain(shares) if shares else None
