"""Overlap on a device with a fixed step time: asynchronous scheduling hides the whole host part (SPEC B6, E2)."""

import pytest
from tests.sim.workloads import fleet, request

from headway.core.ids import RequestId
from headway.core.units import NS_PER_MS
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import WorkerConfig
from headway.sched.registry import PolicyChoice
from headway.sim.fleet import Fleet
from headway.sim.truth import LinearTruth

DEVICE, HOST = 10 * NS_PER_MS, 3 * NS_PER_MS
TRUTH = LinearTruth(base_ns=DEVICE, token_ns=0.0, kv_ns=0.0, host_base_ns=HOST)
TOKENS = 30


def served(credits: int, pace: str = "on_launch") -> Fleet:
    llm = LlmParams(max_seqs=4, step_tokens=512, async_depth=credits)
    worker = WorkerConfig(credits=credits, pace=PolicyChoice(pace))
    ran = fleet(replicas=1, truth=TRUTH, llm=llm, worker=worker)
    ran.offer([request("req-1", 8, TOKENS, NS_PER_MS, family=1)])
    ran.sim.run()
    return ran


def gaps(ran: Fleet) -> set[int]:
    (stream,) = ran.sim.clients.streams.values()
    assert len(stream.times_ns) == TOKENS
    return {later - earlier for earlier, later in zip(stream.times_ns, stream.times_ns[1:], strict=False)}


def test_synchronous_steps_pay_for_planning_each_time() -> None:  # SPEC B6
    ran = served(credits=1)
    assert gaps(ran) == {DEVICE + HOST}
    (stream,) = ran.sim.clients.streams.values()
    assert stream.evidence is not None
    assert stream.evidence.idle_gap_ms == TOKENS * HOST / NS_PER_MS
    assert stream.evidence.overlap_ratio == 0.0


def test_two_credits_hide_planning_entirely() -> None:  # SPEC B6
    ran = served(credits=2)
    assert gaps(ran) == {DEVICE}
    (stream,) = ran.sim.clients.streams.values()
    assert stream.evidence is not None
    assert stream.evidence.idle_gap_ms == HOST / NS_PER_MS  # the very first plan has nothing to hide behind
    assert stream.evidence.overlap_ratio == pytest.approx((TOKENS - 1) / TOKENS)


def test_planning_just_in_time_hides_it_too() -> None:  # SPEC B6
    assert max(gaps(served(credits=2, pace="just_in_time"))) == DEVICE


def test_planning_longer_than_a_step_is_what_remains_visible() -> None:
    slow = LinearTruth(base_ns=DEVICE, token_ns=0.0, kv_ns=0.0, host_base_ns=DEVICE + HOST)
    llm = LlmParams(max_seqs=4, step_tokens=512, async_depth=2)
    ran = fleet(replicas=1, truth=slow, llm=llm)
    ran.offer([request("req-1", 8, TOKENS, NS_PER_MS, family=1)])
    ran.sim.run()
    assert gaps(ran) == {DEVICE + HOST}


def test_planning_just_in_time_lets_a_late_arrival_join_one_step_sooner() -> None:  # SPEC B6
    def ttft(pace: str) -> int:
        llm = LlmParams(max_seqs=4, step_tokens=512, async_depth=2)
        worker = WorkerConfig(credits=2, pace=PolicyChoice(pace))
        ran = fleet(replicas=1, truth=TRUTH, llm=llm, worker=worker)
        arrives = NS_PER_MS + HOST + 10 * DEVICE + DEVICE // 5
        ran.offer([request("req-1", 8, TOKENS, NS_PER_MS, family=1), request("req-2", 8, 1, arrives, family=2)])
        ran.sim.run()
        return ran.sim.clients.streams[RequestId("req-2")].ttft_ns or 0

    assert ttft("on_launch") - ttft("just_in_time") == DEVICE
