from headway.bench.simulated import run_workload
from headway.bench.summary import Targets, summarise
from headway.sim.fleet import FleetParams
from headway.workload.lengths import Lengths
from headway.workload.requests import Workload

SMALL = Workload(count=30, rate_per_s=20.0, prompt=Lengths(mean=40.0), output=Lengths(mean=20.0))


def test_every_request_has_an_outcome_in_order() -> None:  # SPEC J1, K1
    fleet, outcomes = run_workload(FleetParams(), SMALL)
    assert [outcome.sent_ns for outcome in outcomes] == sorted(outcome.sent_ns for outcome in outcomes)
    assert [outcome.output_tokens for outcome in outcomes] == [
        len(stream.tokens) for stream in fleet.sim.clients.streams.values()
    ]
    assert summarise(outcomes, Targets()).completed == 30


def test_more_replicas_serve_a_burst_sooner() -> None:
    burst = Workload(count=40, rate_per_s=10_000.0, prompt=Lengths(mean=300.0), output=Lengths(mean=20.0))
    one, four = (summarise(run_workload(FleetParams(replicas=n), burst)[1], Targets()) for n in (1, 4))
    assert one.ttft_ms.p99 is not None
    assert four.ttft_ms.p99 is not None
    assert four.ttft_ms.p99 < 0.5 * one.ttft_ms.p99
