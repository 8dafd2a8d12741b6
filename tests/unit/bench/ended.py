"""Requests that ended, for tests of what a run leaves behind: made by hand, or by a small simulated fleet."""

from tests.sim.draws import Workload, requests

from headway.bench.ends import RequestEnd
from headway.bench.outcome import Outcome
from headway.bench.summary import Targets
from headway.core.decisions import Decision
from headway.core.evidence import FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.units import NS_PER_MS, Ns
from headway.sim.fleet import FRONT, Fleet, FleetParams
from headway.workload.lengths import Lengths

NO_TARGETS = Targets()
WORKLOAD = Workload(rate_per_s=40, count=60, tenants=2, prompt=Lengths(mean=64.0), output=Lengths(mean=12.0))
TARGETS = Targets(ttft_ms=60.0, tpot_ms=10.0)
PARAMS = FleetParams(replicas=2)


def ms(value: float) -> Ns:
    return round(value * NS_PER_MS)


def end(
    name: str,
    sent_ms: float,
    *times_ms: float,
    tenant: str = "a",
    targets: Targets = NO_TARGETS,
    cold: bool = False,
    has_tokens: bool = True,
) -> RequestEnd:
    """A request that waited 1 ms at the front, then ran; without times it was refused."""
    tokens = len(times_ms) if has_tokens else 0
    sent = ms(sent_ms)
    times = tuple(sent + ms(time) for time in times_ms)
    ended = times[-1] if times else sent + ms(1)
    worker = None
    if times:
        worker = WorkerMarks(NodeId("rep-0"), sent + ms(1), sent + ms(2), times[0], times[-1], times[-1], steps=1)
    front = FrontMarks(
        RequestId(name), TenantId(tenant), sent, sent, sent, sent + ms(1) if times else None,
        times[0] if times else None, times[-1] if times else None, ended, tokens,
        outcome="ok" if times else "rejected", cold_start=cold, model=ModelId("toy"), prompt_tokens=10,
        decisions=(Decision("pool", sent, "route", "rep-0", "lightest", (), RequestId(name)),),
    )  # fmt: skip
    outcome = Outcome(sent, ended, times, tokens, 10, None if times else "queue_full")
    return RequestEnd(evidence_record(front, worker), outcome, targets, "chat", "main" if times else "")


def simulated(
    workload: Workload = WORKLOAD, targets: Targets = TARGETS, params: FleetParams = PARAMS
) -> tuple[Fleet, list[RequestEnd]]:
    """Run a fleet of the simulator to its end."""
    fleet = Fleet(params)
    engine = params.engine
    offered = {item.id: item for item in requests(workload, engine.model, engine.vocab_size, engine.block_size)}
    for item in offered.values():
        fleet.sim.arrive(FRONT, item, item.arrived_ns)
    fleet.sim.run()
    ends = []
    for name, stream in fleet.sim.clients.streams.items():
        assert stream.end is not None
        assert stream.ended_ns is not None
        assert stream.evidence is not None
        error = None if stream.end.error is None else stream.end.error.code
        prompt = len(offered[name].prompt)
        outcome = Outcome(stream.sent_ns, stream.ended_ns, tuple(stream.times_ns), len(stream.tokens), prompt, error)
        ends.append(RequestEnd(stream.evidence, outcome, targets, "chat", "main"))
    return fleet, ends
