import msgspec
import pytest
from tests.sim.workloads import CHECKED, ENGINE, fleet, request, run

from headway.bench.recorded import Recorded, front_view, quiet_spells, worker_view
from headway.core.ids import RequestId
from headway.core.units import NS_PER_MS
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sim.fleet import FRONT, Fleet, FleetParams

SMALL = LlmParams(max_seqs=8, step_tokens=64, chunk=PolicyChoice("constant", {"tokens": 32}))


def recorded(ran: Fleet) -> Recorded:
    log = ran.sim.log
    return Recorded(front_view(log.of(FRONT)), {node: worker_view(log.of(node)) for node in ran.replicas})


def test_tells_routes_chunks_and_ends() -> None:
    here = recorded(run(fleet(llm=SMALL), [request("req-0", 80, 5, NS_PER_MS), request("req-1", 10, 1, NS_PER_MS)]))
    first, second = here.fates().values()
    assert first.chunks == ((0, 32), (32, 32), (64, 16))
    assert second.chunks == ((0, 10),)
    assert {first.routes, second.routes} == {("rep-0",), ("rep-1",)}
    assert (first.output_tokens, first.reason, first.preemptions) == (5, "length", 0)


def test_counts_preemptions_and_what_is_computed_again() -> None:
    tight = msgspec.structs.replace(ENGINE, kv_blocks=10)
    params = FleetParams(replicas=1, engine=tight, sim=CHECKED, llm=msgspec.structs.replace(SMALL, prefix_cache=False))
    here = recorded(run(Fleet(params), [request(f"req-{n}", 60, 60, NS_PER_MS, family=n) for n in range(2)]))
    fates = here.fates().values()
    assert sum(fate.preemptions for fate in fates) > 0
    assert max(sum(count for _, count in fate.chunks) for fate in fates) > 60


def test_tells_a_refusal() -> None:
    config = msgspec.structs.replace(FleetParams().front, admission=PolicyChoice("bounded", {"queue_max": 0}))
    here = recorded(run(fleet(front=config), [request(f"req-{n}", 80, 40, NS_PER_MS) for n in range(60)]))
    verdicts = {fate.admissions[-1:] for fate in here.fates().values()}
    assert ("reject",) in verdicts


def test_quiet_begins_when_the_last_answer_ends() -> None:
    late = 10_000 * NS_PER_MS
    here = recorded(run(fleet(), [request("req-0", 8, 4, NS_PER_MS), request("req-1", 8, 4, late)]))
    ends = here.front.ends
    assert quiet_spells(here.front) == [ends[RequestId("req-0")][0], ends[RequestId("req-1")][0]]


@pytest.mark.parametrize("name", ["submitted_ns", "first_ns"])
def test_stamps_every_request(name: str) -> None:
    here = recorded(run(fleet(), [request(f"req-{n}", 8, 4, NS_PER_MS) for n in range(3)]))
    stamps = getattr(here.front, name)
    assert list(stamps) == list(here.front.arrivals)
    assert all(at_ns >= here.front.arrivals[who].at_ns for who, at_ns in stamps.items())
