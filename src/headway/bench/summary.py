"""Percentiles, throughput and goodput of a load. Every request that was sent counts, failed ones as misses."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headway.bench.outcome import Outcome
from headway.core.slo import Targets as Targets
from headway.core.units import NS_PER_MS, NS_PER_S


class Quantiles(msgspec.Struct, frozen=True):
    """Nearest-rank percentiles in milliseconds; all None when nothing was measured."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Summary(msgspec.Struct, frozen=True):
    """One load in numbers. `attainment`: share of all requests that met every target."""

    sent: int
    completed: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    itl_ms: Quantiles
    e2e_ms: Quantiles
    attainment: float
    goodput_per_s: float
    messages: dict[str, str] = {}  # by code: what was first said of such an error; msgspec copies the default
    images_per_s: float | None = None  # None: no picture came
    video_s_per_s: float | None = None  # seconds of video; None: no video came whose frames per second are known

    @property
    def has_tokens(self) -> bool:
        """False of pictures and videos, whose only output is their last."""
        return self.output_tokens_per_s > 0 or self.tpot_ms.count > 0 or self.itl_ms.count > 0

    @property
    def has_first_times(self) -> bool:
        """False where a first output is all of an answer, so that TTFT is e2e."""
        return self.has_tokens or self.ttft_ms != self.e2e_ms


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed; `ordered` ascends, not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def quantiles(values: Sequence[float]) -> Quantiles:
    """Summarise times that are given in nanoseconds."""
    if not values:
        return Quantiles(0)
    ordered = sorted(value / NS_PER_MS for value in values)
    p50, p95, p99 = (nearest_rank(ordered, share) for share in (0.50, 0.95, 0.99))
    return Quantiles(len(ordered), sum(ordered) / len(ordered), p50, p95, p99, ordered[-1])


def meets(outcome: Outcome, targets: Targets) -> bool:
    """True when the request completed within every target; a single token has no TPOT to miss."""
    if outcome.error is not None or outcome.ttft_ns is None:
        return False
    times = (
        (targets.ttft_ms, outcome.ttft_ns),
        (targets.tpot_ms, outcome.tpot_ns or 0.0),
        (targets.e2e_ms, outcome.ended_ns - outcome.sent_ns),
    )
    return all(target is None or took <= target * NS_PER_MS for target, took in times)


def summarise(outcomes: Sequence[Outcome], targets: Targets) -> Summary:
    """Summarise a whole load; the clock runs from the first request sent to the last one ended."""
    done = [outcome for outcome in outcomes if outcome.error is None]
    span_ns = max((o.ended_ns for o in outcomes), default=0) - min((o.sent_ns for o in outcomes), default=0)
    duration_s = span_ns / NS_PER_S
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    attained = sum(meets(outcome, targets) for outcome in outcomes)
    return Summary(
        sent=len(outcomes),
        completed=len(done),
        errors=dict(sorted(Counter(o.error for o in outcomes if o.error is not None).items())),
        duration_s=duration_s,
        requests_per_s=len(done) * per_s,
        output_tokens_per_s=sum(outcome.output_tokens for outcome in outcomes) * per_s,
        ttft_ms=quantiles([o.ttft_ns for o in done if o.ttft_ns is not None]),
        tpot_ms=quantiles([o.tpot_ns for o in done if o.tpot_ns is not None]),
        itl_ms=quantiles([later - earlier for o in done for earlier, later in pairwise(o.times_ns)]),
        e2e_ms=quantiles([outcome.ended_ns - outcome.sent_ns for outcome in done]),
        attainment=attained / len(outcomes) if outcomes else 0.0,
        goodput_per_s=attained * per_s,
        images_per_s=sum(o.images for o in done) * per_s or None,
        video_s_per_s=sum(o.video_s or 0.0 for o in done) * per_s or None,
        messages={o.error: o.message for o in reversed(outcomes) if o.error is not None and o.message is not None},
    )


def made_per_s(summary: Summary) -> str:
    """Return what came per second, with its unit; what this load cannot have is left out."""
    parts = [f"{summary.output_tokens_per_s:.1f} output tokens/s"] if summary.has_tokens else []
    if summary.images_per_s is not None:
        parts.append(f"{summary.images_per_s:.2f} images/s")
    if summary.video_s_per_s is not None:
        parts.append(f"{summary.video_s_per_s:.2f} s of video/s")
    return "".join(f", {part}" for part in parts)


def table(summary: Summary, queues: Quantiles | None = None) -> str:
    """Return what is printed of a load; times that it cannot have are left out, as those of tokens of pictures."""
    lines = [
        f"requests   {summary.completed} of {summary.sent} completed in {summary.duration_s:.2f} s",
        f"rate       {summary.requests_per_s:.2f} requests/s{made_per_s(summary)}",
        f"goodput    {summary.goodput_per_s:.2f} requests/s, {summary.attainment:.1%} met every target",
        "",
        f"{'ms':<6}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}",
    ]
    times = [("e2e", summary.e2e_ms), *([] if queues is None else [("queues", queues)])]
    if summary.has_tokens:
        times = [("tpot", summary.tpot_ms), ("itl", summary.itl_ms), *times]
    if summary.has_first_times:
        times = [("ttft", summary.ttft_ms), *times]
    for name, q in times:
        cells = "".join(f"{'-' if v is None else format(v, '.2f'):>10}" for v in (q.mean, q.p50, q.p95, q.p99, q.max))
        lines.append(f"{name:<6}{cells}")
    for code, count in summary.errors.items():
        said = summary.messages.get(code)
        lines.append(f"error      {code}: {count}" + ("" if said is None else f"; {said}"))
    return "\n".join(lines)
