"""Where to look first in a run: the symptoms of seed 002's table, each with the numbers that show it."""

from collections.abc import Sequence
from typing import Final

from headway.bench.charts import duration
from headway.bench.run_summary import RunSummary
from headway.bench.series import Point

LOW_ATTAINMENT: Final = 0.9  # DistServe's
BUSY: Final = 0.95
IDLE: Final = 0.4
FULL_KV: Final = 0.95
JITTER: Final = 8.0  # p99 over p50 of the gaps
UNFAIR: Final = 0.9
GROWTH: Final = 2.0  # of a queue, from the second to the last quarter
QUEUED: Final = 0.5  # share of TTFT


def first_look(summary: RunSummary, points: Sequence[Point]) -> list[str]:
    """Return one sentence per symptom, the gravest first; one that all is well when there is none."""
    found = [*_ending(summary), *_promises(summary), *_queues(summary, points), *_pools(summary), *_jitter(summary)]
    if found:
        return found
    kept = f"{summary.attainment:.1%} of {summary.sent} requests kept every promise" if summary.sent else "nothing ran"
    busiest = max(((use.busy, name) for name, use in summary.pool_use.items()), default=None)
    return [kept + ("" if busiest is None else f"; the busiest pool, {busiest[1]}, was busy {busiest[0]:.0%}") + "."]


def _ending(summary: RunSummary) -> list[str]:
    out = []
    if not summary.complete:
        out.append(
            f"The run was interrupted after {summary.virtual_s:.1f} virtual s; {summary.unfinished} requests had not "
            "ended and count as misses."
        )
    elif summary.unfinished:
        oldest = duration(summary.oldest_unfinished_s * 1e3)
        out.append(f"{summary.unfinished} requests had not ended when the run was over, the oldest after {oldest}.")
    failed = sum(summary.errors.values())
    if failed:
        codes = ", ".join(f"{count} {name}" for name, count in summary.errors.items())
        out.append(f"{failed} of {summary.sent} requests failed or were refused ({codes}); each is a miss.")
    return out


def _promises(summary: RunSummary) -> list[str]:
    shares = {name: share for name, share in summary.attained.items() if share is not None and name != "deadlines"}
    if not shares or summary.attainment >= LOW_ATTAINMENT:
        return []
    met = round(summary.attainment * summary.sent)
    lost = summary.sent - summary.completed  # refused, failed or unfinished
    kept = met / summary.completed if summary.completed else 0.0
    if lost > summary.completed - met and kept >= LOW_ATTAINMENT:
        return [
            f"{summary.attainment:.1%} of the requests kept every promise, {kept:.1%} of those that completed: what "
            "was refused or lost is most of the misses; look at capacity and at why admission refused."
        ]
    worst = min(shares, key=lambda name: shares[name])
    look = {
        "ttft": "queues, prefill and routing",
        "tpot": "batch size, chunks that interrupt decodes, and KV pressure",
        "e2e": "the longest answers, and whichever of TTFT and TPOT is worse",
    }[worst]
    each = ", ".join(f"{name.upper()} {share:.1%}" for name, share in shares.items())
    return [
        f"{summary.attainment:.1%} of the requests kept every promise, {kept:.1%} of those that completed "
        f"(alone: {each}): look at {look}."
    ]


def _queues(summary: RunSummary, points: Sequence[Point]) -> list[str]:
    out = []
    queue, ttft = summary.queue_ms.p99, summary.ttft_ms.p99
    if queue is not None and ttft is not None and ttft > 0 and queue / ttft > QUEUED:
        out.append(f"Waiting takes most of TTFT: p99 of all queues {duration(queue)}, p99 of TTFT {duration(ttft)}.")
    early, late = (_waiting(points[len(points) * part // 4 : len(points) * (part + 1) // 4]) for part in (1, 3))
    if late > GROWTH * early and late > 1:
        out.append(
            f"Queues grew until the end (mean {early:.1f} waiting in the second quarter, {late:.1f} in the last): "
            f"{summary.offered_per_s:.2f} requests/s were offered, {summary.requests_per_s:.2f} served."
        )
    return out


def _waiting(points: Sequence[Point]) -> float:
    total = [point.waiting for point in points]
    return sum(total) / len(total) if total else 0.0


def _pools(summary: RunSummary) -> list[str]:
    out = []
    for name, use in summary.pool_use.items():
        group = summary.pools.get(name)
        waited = 0.0 if group is None or group.queue_ms.p95 is None else group.queue_ms.p95
        is_queued = summary.ttft_ms.p50 is not None and waited > summary.ttft_ms.p50 * QUEUED
        if use.busy > BUSY and is_queued:
            out.append(
                f"Pool {name} was busy {use.busy:.0%} of the time while requests waited {duration(waited)} (p95)."
            )
        elif use.busy < IDLE and is_queued:
            out.append(
                f"Pool {name} was busy {use.busy:.0%} only, yet requests waited {duration(waited)} (p95): look at "
                "grain, batch limits and KV."
            )
        if use.kv_peak is not None and use.kv_peak > FULL_KV:
            preempted = use.counters.get("preemptions", 0)
            out.append(f"KV of pool {name} was {use.kv_peak:.0%} full at its peak, with {preempted} preemptions.")
    if summary.jain_tenants is not None and summary.jain_tenants < UNFAIR:
        out.append(f"Tenants were not served alike: Jain's index {summary.jain_tenants:.2f} of served over asked.")
    return out


def _jitter(summary: RunSummary) -> list[str]:
    p50, p99 = summary.itl_ms.p50, summary.itl_ms.p99
    if p50 is None or p99 is None or p50 <= 0 or p99 / p50 < JITTER:
        return []
    return [
        f"Decodes are jerky: gaps between tokens are {duration(p50)} (p50) but {duration(p99)} (p99): long prompts "
        "interrupt them; look at the chunk policy and at P/D."
    ]
