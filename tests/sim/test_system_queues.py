"""Little's law in every queue of a system: on average there is what arrives times how long it stays (SPEC J3)."""

import pytest
from tests.sim.systems import EXACT, Kept, linear, scenario

from headway.core.units import NS_PER_MS, NS_PER_S
from headway.sim.pools import EngineSize
from headway.sim.probe import Probe
from headway.sim.scenario import RunSettings
from headway.sim.sources import source_of
from headway.sim.system import System
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

LOAD = Synthetic(
    count=600,
    arrivals=Poisson(rate_per_s=90.0),
    prompt=Lengths(mean=300.0),
    output=Lengths(mean=40.0),
)


def test_littles_law_holds_in_the_queue_and_in_the_batch_of_every_pool() -> None:  # SPEC J3
    """Samples of the machines against the segments of the requests' evidence: neither is made from the other."""
    few = linear().scheduler.__class__(max_seqs=2)
    pools = (
        linear(name="p", role="prefill", truth=EXACT, scheduler=few),
        linear(name="d", role="decode", truth=EXACT, replicas=4, engine=EngineSize(kv_blocks=2000)),
    )
    wanted, kept = scenario(*pools, workload=(LOAD,), sim=RunSettings()), Kept()
    system = System(wanted, source_of(wanted), kept)
    probe = Probe(system, sample_ms=2.0)
    assert system.sim.serve()
    span_s = system.sim.now_ns / NS_PER_S
    queued_s = sum(record.segments.get("engine_queue", 0.0) for _, _, record in kept.ended) / 1000
    looks = [sample for sample in probe.samples if sample.pool == "p"]
    waiting = sum(sample.waiting for sample in looks) / len(looks)
    assert waiting > 1  # there is a queue to speak of
    assert waiting * span_s == pytest.approx(queued_s, rel=0.03)
    # In the decode pool from its first token, which the prefill pool streams, to the last.
    stays_ns = [stream.times_ns[-1] - stream.times_ns[0] for _, stream, _ in kept.ended if len(stream.times_ns) > 1]
    looks = [sample for sample in probe.samples if sample.pool == "d"]
    there = sum(sample.running + sample.waiting for sample in looks) / len(looks)
    handed_over = 2 * NS_PER_MS / NS_PER_S * len(stays_ns)  # messages and the copy, at most
    assert there * span_s == pytest.approx(sum(stays_ns) / NS_PER_S, abs=handed_over + 0.03 * there * span_s)
