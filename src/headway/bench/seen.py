"""What the clients of a simulation saw, handed to whoever writes or counts it (`bench.results.Sink`)."""

from headway.bench.ends import RequestEnd
from headway.bench.outcome import Outcome
from headway.bench.results import Sink
from headway.bench.run_summary import OpenRequest
from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId
from headway.core.request import DiffusionRequest, Slo
from headway.core.slo import Targets
from headway.core.units import NS_PER_MS, Ns, ms_from_ns
from headway.sim.clients import Stream
from headway.sim.scenario import Scenario
from headway.sim.system import pool_of
from headway.workload.offered import Offered


class Audience:
    """The sink of a simulation."""

    def __init__(self, scenario: Scenario, sink: Sink) -> None:
        self.sink, self._way_ns = sink, scenario.network.client_ns
        self.done = 0

    def request(self, record: EvidenceRecord, stream: Stream) -> None:
        """A request is over."""
        self.done += 1
        offered = stream.offered
        assert offered is not None  # every request of a system comes from its source
        request = offered.request
        self.sink.ended(
            RequestEnd(
                record,
                outcome_of(offered, stream, self._way_ns),
                self._targets(offered, stream.sent_ns),
                workload_of(request.id),
                "" if record.replica is None else pool_of(NodeId(record.replica)),
            )
        )

    def decision(self, decision: Decision) -> None:
        """Pass it on."""
        self.sink.decided(decision)

    def _targets(self, offered: Offered, sent_ns: Ns) -> Targets:
        """What was promised, from the moment at which the client sent."""
        slo = offered.request.slo
        return Targets() if slo == Slo() else _as_targets(slo, sent_ns + self._way_ns)


def open_request(stream: Stream, now_ns: Ns) -> OpenRequest:
    """Return what is known of a request that has not ended."""
    offered = stream.offered
    assert offered is not None
    request = offered.request
    prompt = 0 if isinstance(request, DiffusionRequest) else len(request.prompt)
    return OpenRequest(
        age_ns=now_ns - stream.sent_ns,
        ttft_ns=stream.ttft_ns,
        tenant=request.tenant,
        workload=workload_of(request.id),
        wanted_tokens=prompt + offered.output_tokens,
        served_tokens=prompt + len(stream.tokens) if stream.tokens else 0,
    )


def workload_of(request: str) -> str:
    """Return the name of the workload that a request came from; its id holds it (`req-NAME-...`)."""
    return request.split("-", 2)[1]


def _as_targets(slo: Slo, begun_ns: Ns) -> Targets:
    def left_ms(due_ns: Ns | None) -> float | None:
        return None if due_ns is None else ms_from_ns(due_ns - begun_ns)

    tpot_ms = None if slo.tpot_ns is None else slo.tpot_ns / NS_PER_MS
    return Targets(left_ms(slo.ttft_deadline_ns), tpot_ms, left_ms(slo.e2e_deadline_ns))


def _video_s(request: DiffusionRequest) -> float | None:
    return request.frames * request.n / request.fps if request.fps else None


def outcome_of(offered: Offered, stream: Stream, way_ns: Ns) -> Outcome:
    """Return what the client saw of an answer that has ended, one way after the gateway sent it."""
    end, request = stream.end, offered.request
    assert end is not None
    assert stream.ended_ns is not None
    ended_ns = stream.ended_ns + way_ns
    error = None if end.error is None else end.error.code or "error"
    if isinstance(request, DiffusionRequest):  # an image comes in one piece
        if error is not None:
            return Outcome(stream.sent_ns, ended_ns, error=error)
        images, video_s = (request.n, None) if request.frames == 1 else (0, _video_s(request))
        return Outcome(stream.sent_ns, ended_ns, (ended_ns,), images=images, video_s=video_s)
    times = tuple(at_ns + way_ns for at_ns in stream.times_ns) if way_ns else tuple(stream.times_ns)
    output, prompt = len(stream.tokens), len(request.prompt)
    return Outcome(stream.sent_ns, ended_ns, times, output, prompt, error, wanted_tokens=offered.output_tokens)
