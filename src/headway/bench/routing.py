"""One run of the routing study: a slice of the trace through a simulated fleet, and what its clients saw."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from headway.bench.summary import Quantiles, jain, quantiles
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_S, Ns
from headway.sim.clients import Stream
from headway.sim.routing_fleet import RoutingFleet, RoutingFleetParams
from headway.workload.offered import Offered


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests before `warm` fill the caches, those after the last `cool` keep the load up: only the others count."""

    warm: int = 400
    cool: int = 100
    patience_s: float = 60.0  # after the last arrival; what has not ended by then is a miss


class RoutingSummary(msgspec.Struct, frozen=True):
    """What one run measured. Times of requests that never ended count with their age at the end of the run."""

    offered: int
    offered_per_s: float
    goodput_per_s: float  # met TTFT and TPOT; refused, late and unfinished ones are misses
    attainment: float
    attainment_deadlines: float  # token n due at TTFT + (n - 1) TPOT (REFERENCE 1)
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    hit_rate: float  # cached over all prompt tokens, as the engines say, of requests that were served
    imbalance: float  # largest over mean prompt and output tokens per replica
    jain: float  # of device time per replica
    refused: int
    unfinished: int
    wasted_prefill: float  # share of computed prompt tokens whose request missed
    preemptions: int
    busy: float  # mean share of the device time


class _Seen(msgspec.Struct):
    """One measured request."""

    prompt_tokens: int
    stream: Stream
    ttft_ns: float | None = None
    tpot_ns: float | None = None
    e2e_ns: float = 0.0
    met: bool = False
    met_deadlines: bool = False


def run(params: RoutingFleetParams, offered: Sequence[Offered], window: Window) -> RoutingSummary:
    """Simulate until every measured request has ended or the patience is over."""
    fleet = RoutingFleet(params, offered)
    measured = offered[window.warm : len(offered) - window.cool]
    last_ns = offered[-1].request.arrived_ns
    streams = fleet.sim.clients.streams
    waiting = iter(measured)
    current = next(waiting)

    def is_done() -> bool:
        nonlocal current
        while (stream := streams.get(current.request.id)) is not None and stream.end is not None:
            following = next(waiting, None)
            if following is None:
                return True
            current = following
        return False

    with _without_gc():  # millions of acyclic objects: walking them takes a third of the run
        fleet.sim.run(until_ns=last_ns + round(window.patience_s * NS_PER_S), is_done=is_done)
    return _summarise(fleet, [_see(item, streams[item.request.id], fleet.sim.now_ns) for item in measured], measured)


@contextmanager
def _without_gc() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _see(item: Offered, stream: Stream, now_ns: Ns) -> _Seen:
    request = item.request
    assert isinstance(request, LlmRequest)  # this study offers nothing else
    seen = _Seen(request.prompt_tokens, stream)
    ended_ns = now_ns if stream.ended_ns is None else stream.ended_ns
    seen.e2e_ns = ended_ns - stream.sent_ns
    is_refused = stream.end is not None and stream.end.error is not None
    if stream.ttft_ns is None:
        seen.ttft_ns = None if is_refused else float(now_ns - stream.sent_ns)
        return seen
    seen.ttft_ns, seen.tpot_ns = float(stream.ttft_ns), stream.tpot_ns
    if stream.end is None or is_refused:
        return seen
    first_due_ns, tpot_ns = request.slo.ttft_deadline_ns, request.slo.tpot_ns
    assert first_due_ns is not None
    assert tpot_ns is not None
    times = stream.times_ns
    seen.met = times[0] <= first_due_ns and (stream.tpot_ns or 0.0) <= tpot_ns
    seen.met_deadlines = all(at_ns <= first_due_ns + place * tpot_ns for place, at_ns in enumerate(times))
    return seen


def _summarise(fleet: RoutingFleet, seen: Sequence[_Seen], measured: Sequence[Offered]) -> RoutingSummary:
    span_s = (measured[-1].request.arrived_ns - measured[0].request.arrived_ns) / NS_PER_S
    served = [item for item in seen if item.stream.times_ns]
    prompt = sum(item.prompt_tokens for item in served)
    cached = {id(item): _cached(item.stream) for item in served}
    computed = sum(item.prompt_tokens - cached[id(item)] for item in served)
    wasted = sum(item.prompt_tokens - cached[id(item)] for item in served if not item.met)
    met = sum(item.met for item in seen)
    now_ns = fleet.sim.now_ns
    work, busy_ns, preemptions = [], [], 0
    for replica in fleet.replicas:
        executor = fleet.sim.lives[replica].executor
        counters = dict(fleet.worker(replica).worker.machine.counters())
        work.append(float(counters["prompt_tokens"] + counters["generated_tokens"]))
        busy_ns.append(0.0 if executor is None else float(executor.busy_ns))
        preemptions += counters["preemptions"]
    return RoutingSummary(
        offered=len(seen),
        offered_per_s=len(seen) / span_s,
        goodput_per_s=met / span_s,
        attainment=met / len(seen),
        attainment_deadlines=sum(item.met_deadlines for item in seen) / len(seen),
        ttft_ms=quantiles([item.ttft_ns for item in seen if item.ttft_ns is not None]),
        tpot_ms=quantiles([item.tpot_ns for item in seen if item.tpot_ns is not None]),
        e2e_ms=quantiles([item.e2e_ns for item in seen if item.ttft_ns is not None]),
        hit_rate=sum(cached.values()) / prompt if prompt else 0.0,
        imbalance=max(work) * len(work) / sum(work) if sum(work) else 1.0,
        jain=jain(busy_ns),
        refused=sum(item.ttft_ns is None for item in seen),
        unfinished=sum(item.stream.end is None for item in seen),
        wasted_prefill=wasted / computed if computed else 0.0,
        preemptions=preemptions,
        busy=sum(busy_ns) / len(busy_ns) / now_ns,
    )


def _cached(stream: Stream) -> int:
    return 0 if stream.end is None else stream.end.cached_tokens
