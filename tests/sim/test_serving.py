"""FrontNode and WorkerNodes on the virtual clock: what clients get, what accounts hold, what evidence says."""

import pytest
from tests.sim.workloads import VOCAB, fleet, levels, mix, request, run, wrong

from headway.core.request import FinishReason
from headway.core.units import NS_PER_MS
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.registry import PolicyChoice
from headway.sim.truth import LinearTruth


@pytest.mark.parametrize("credits", [1, 2])
@pytest.mark.parametrize("router", ["round_robin", "least_requests", "least_tokens", "power_of_two"])
def test_every_client_gets_what_its_request_alone_produces(router: str, credits: int) -> None:  # SPEC B7, A1
    requests = mix(80)
    llm = LlmParams(max_seqs=16, step_tokens=512, async_depth=credits)
    front = FrontConfig(router=PolicyChoice(router))
    ran = run(fleet(llm=llm, front=front, worker=WorkerConfig(credits=credits)), requests)
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}


def test_clients_that_leave_or_stop_do_not_disturb_others() -> None:  # SPEC B5
    requests = mix(80, seed=3)
    ran = fleet()
    for place, item in enumerate(requests):
        leave = 3 if place % 5 == 1 else None
        stop = 4 if place % 5 == 2 else None
        ran.sim.arrive(ran.front.id, item, item.arrived_ns, leave_after=leave, stop_after=stop)
    ran.sim.run()
    untouched = [item for place, item in enumerate(requests) if place % 5 not in (1, 2)]
    assert wrong(ran, untouched) == []
    assert set(levels(ran).values()) == {0}
    reasons = {ran.sim.clients.streams[item.id].end.reason for item in requests[1::5]}  # type: ignore[union-attr]  # all ended
    assert FinishReason.CANCELLED in reasons


def test_a_small_cache_preempts_and_changes_no_token() -> None:  # SPEC B4, B7
    requests = mix(60, seed=5, gap_ns=100_000, longest=200)
    small = SyntheticParams(kv_blocks=30, vocab_size=VOCAB, check=True)
    ran = run(fleet(engine=small), requests)
    assert wrong(ran, requests) == []
    preemptions = [ran.sim.clients.streams[item.id].evidence.preemptions for item in requests]  # type: ignore[union-attr]  # all closed
    assert sum(preemptions) > 0
    assert set(levels(ran).values()) == {0}


@pytest.mark.parametrize("failures", [1, 3])
def test_an_engine_failure_changes_no_token(failures: int) -> None:  # SPEC A11, B7
    requests = mix(40, seed=6)
    ran = fleet()
    ran.offer(requests)
    for place in range(failures):
        executor = ran.sim.lives[ran.replicas[0]].executor
        assert executor is not None
        ran.sim.at(20_000_000 + place * 30_000_000, lambda _, e=executor: e.fail_next())  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}


def test_an_engine_that_always_fails_ends_in_an_error() -> None:  # SPEC A11
    ran = fleet(replicas=1)
    executor = ran.sim.lives[ran.replicas[0]].executor
    assert executor is not None
    for _ in range(99):
        executor.fail_next()
    ran.offer([request("req-1", 5, 5, 0)])
    ran.sim.run()
    end = ran.sim.clients.streams[request("req-1", 5, 5, 0).id].end
    assert end is not None
    assert end.error is not None
    assert end.error.code == "engine_lost"
    assert set(levels(ran).values()) == {0}


def test_segments_add_up_to_the_clients_time() -> None:  # SPEC I1, I2
    requests = mix(60, seed=7, gap_ns=500_000)
    ran = run(fleet(truth=LinearTruth(host_base_ns=200_000.0, jitter=0.1)), requests)
    for item in requests:
        stream = ran.sim.clients.streams[item.id]
        evidence, end_ns = stream.evidence, stream.ended_ns
        assert evidence is not None
        assert end_ns is not None
        client_ms = (end_ns - stream.sent_ns) / 1e6 + ran.params.sim.flush_ns / 1e6
        assert sum(evidence.segments.values()) == pytest.approx(client_ms, rel=1e-9)
        assert evidence.ttft_ms == pytest.approx((stream.ttft_ns or 0) / 1e6)
        assert evidence.segments.get("other", 0.0) == 0.0
        assert evidence.steps_done >= len(stream.tokens)


def test_device_seconds_charged_are_the_devices_busy_time() -> None:  # SPEC H6, L-2
    requests = mix(60, seed=8)
    ran = run(fleet(), requests)
    charged_us = {a.name: a.used for a in ran.front.ledger.views()}["tenant/default/gpu_seconds"]
    executors = [life.executor for life in ran.sim.lives.values() if life.executor is not None]
    busy_us = sum(executor.busy_ns for executor in executors) / 1e3
    # Asynchronous steps still run a sequence that has just stopped; that step is nobody's.
    assert 0.97 * busy_us <= charged_us <= busy_us


def test_a_lost_replica_costs_time_but_not_time_per_token() -> None:  # SPEC I2, A11
    ran = fleet(replicas=1)
    item = request("req-1", 30, 100, NS_PER_MS)
    ran.offer([item])
    ran.sim.at(200 * NS_PER_MS, lambda _: ran.sim.kill(ran.replicas[0]))
    ran.sim.at(700 * NS_PER_MS, lambda _: ran.sim.restart(ran.replicas[0]))
    ran.sim.run()
    assert wrong(ran, [item]) == []
    stream = ran.sim.clients.streams[item.id]
    evidence = stream.evidence
    assert evidence is not None
    assert evidence.ttft_ms == pytest.approx((stream.ttft_ns or 0) / 1e6)
    assert sum(evidence.segments.values()) == pytest.approx(evidence.e2e_ms)
    assert evidence.segments["preempted"] + evidence.segments["recompute"] > 500.0
    assert evidence.tpot_ms == pytest.approx(ran.params.truth.base_ns / 1e6, rel=0.05)


def test_waiting_for_a_replica_that_loads_is_told_apart_and_makes_the_request_a_cold_one() -> None:  # SPEC I2, A13
    ran = fleet(replicas=1)
    cold, hot = request("req-1", 40, 10, 100 * NS_PER_MS), request("req-2", 40, 10, 800 * NS_PER_MS)
    ran.offer([cold, hot])
    ran.sim.at(50 * NS_PER_MS, lambda _: ran.sim.kill(ran.replicas[0]))
    ran.sim.at(400 * NS_PER_MS, lambda _: ran.sim.restart(ran.replicas[0]))
    ran.sim.run()
    first, second = (ran.sim.clients.streams[item.id].evidence for item in (cold, hot))
    assert first is not None
    assert second is not None
    assert first.cold_start
    assert first.model_load_ms == first.segments["model_load"] == pytest.approx(300.0, abs=1.0)
    assert first.segments["gateway_queue"] < 5.0
    assert sum(first.segments.values()) == pytest.approx(first.e2e_ms)
    assert (second.cold_start, second.model_load_ms) == (False, 0.0)


def test_a_replica_lost_before_the_first_token_is_waiting_time() -> None:  # SPEC I2
    ran = fleet(replicas=1)
    item = request("req-1", 400, 10, 10 * NS_PER_MS)
    ran.offer([item])
    ran.sim.at(11 * NS_PER_MS, lambda _: ran.sim.kill(ran.replicas[0]))
    ran.sim.at(300 * NS_PER_MS, lambda _: ran.sim.restart(ran.replicas[0]))
    ran.sim.run()
    evidence = ran.sim.clients.streams[item.id].evidence
    assert evidence is not None
    assert evidence.segments["gateway_queue"] == pytest.approx(290.0, abs=1.0)
    assert evidence.segments["network_wait"] == pytest.approx(0.1)
