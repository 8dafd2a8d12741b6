"""The scheduler that serves in production, on the virtual clock, against queueing theory (SPEC J3, REFERENCE 2 and 3).

Waits have a huge variance at load 0.8, so the simulated mean is corrected by a control variate: the same arrivals and
services through Lindley's recursion, whose exact mean a long recursion gives for nothing. A scheduler that is not a
first-come-first-served single server differs from its control and fails.
"""

import numpy as np
import pytest

from headway.core.draw import draw_unit
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.router.machine import Room
from headway.sim.driver import SimParams
from headway.sim.fleet import Fleet, FleetParams
from headway.sim.network import NetworkParams
from headway.sim.truth import LinearTruth
from headway.workload.arrivals import poisson
from headway.workload.lengths import Lengths

LOAD = 0.8
MEAN_TOKENS = 40
STEP: Ns = NS_PER_MS
SERVICE: Ns = MEAN_TOKENS * STEP
COUNT = 1000
LONG = 4_000_000
WITHIN = 0.03  # the bound
Sample = tuple[int, int, int]  # requests, running among them, their context in tokens


def request(place: int, tokens: int, at_ns: Ns) -> LlmRequest:
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    return LlmRequest(RequestId(f"req-{place}"), TenantId("t"), ModelId("synthetic"), (place % 99,), sampling, at_ns)


def single_server(truth: LinearTruth, max_seqs: int = 1) -> Fleet:
    """One replica that runs one sequence at a time, on a network without latency."""
    return Fleet(
        FleetParams(
            engine=SyntheticParams(kv_blocks=4096),
            llm=LlmParams(max_seqs=max_seqs, async_depth=1, prefix_cache=False, decisions=False),
            worker=WorkerConfig(credits=1),
            front=FrontConfig(room=Room(engine_queue_ms=1e9)),
            truth=truth,
            sim=SimParams(network=NetworkParams(latency_ns=0), flush_ns=0),
        )
    )


def tokens_of(kind: str, place: int) -> int:
    """Output tokens with mean MEAN_TOKENS: exponential (as geometric), constant, or two-point with E[S^2] = 6.5."""
    if kind == "M/M/1":
        return Lengths(kind="geometric", mean=MEAN_TOKENS, longest=100_000).draw(5, "output", place)
    if kind == "M/D/1":
        return MEAN_TOKENS
    return 12 * MEAN_TOKENS if draw_unit(5, "two-point", 0, place) < 0.5 / 11.5 else MEAN_TOKENS // 2


def lindley(gaps: np.ndarray, services: np.ndarray) -> np.ndarray:
    """Waits of a first-come-first-served single server: W' = max(0, W + S - A)."""
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
    return walk - np.minimum.accumulate(walk)


def long_run_mean(kind: str) -> float:
    """Mean wait in units of the mean service, from a long recursion with antithetic gaps."""
    draws = np.random.default_rng(11)
    u = draws.random(LONG // 2)
    if kind == "M/M/1":
        services = draws.geometric(1 / MEAN_TOKENS, LONG // 2) / MEAN_TOKENS
    elif kind == "M/D/1":
        services = np.ones(LONG // 2)
    else:
        services = np.where(draws.random(LONG // 2) < 0.5 / 11.5, 12.0, 0.5)
    means = [lindley(-np.log(v) / LOAD, services).mean() for v in (u, 1 - u)]
    return float(np.mean(means))


@pytest.mark.parametrize(("kind", "wait"), [("M/M/1", 4.0), ("M/D/1", 2.0), ("M/G/1", 13.0)])
def test_waits_are_those_of_the_queue(kind: str, wait: float) -> None:  # SPEC J3, REFERENCE 3
    times = list(poisson(LOAD * NS_PER_S / SERVICE, COUNT, seed=5, start_ns=NS_PER_MS))
    services = [tokens_of(kind, place) for place in range(COUNT)]
    ran = single_server(LinearTruth(base_ns=STEP, token_ns=0.0, kv_ns=0.0))
    ran.offer(request(place, services[place], at_ns) for place, at_ns in enumerate(times))
    ran.sim.run()
    evidence = [stream.evidence for stream in ran.sim.clients.streams.values()]
    simulated = np.array([record.queue_wait_ms for record in evidence if record is not None]) / (SERVICE / NS_PER_MS)
    assert len(simulated) == COUNT
    gaps = np.diff(np.array([0, *times])) / SERVICE
    control = lindley(gaps, np.array(services) / MEAN_TOKENS)
    corrected = simulated.mean() - control.mean() + long_run_mean(kind)
    assert corrected == pytest.approx(wait, rel=WITHIN)
    assert simulated == pytest.approx(control, abs=1e-6)  # request by request, not only in the mean


def batching(rate_per_s: float, tokens: int, truth: LinearTruth, seconds: float) -> tuple[Fleet, list[Sample]]:
    """A batching replica under Poisson load, sampled every 10 ms after a warm-up."""
    ran = single_server(truth, max_seqs=256)
    times = list(poisson(rate_per_s, round(rate_per_s * seconds), seed=9, start_ns=NS_PER_MS))
    ran.offer(request(place, tokens, at_ns) for place, at_ns in enumerate(times))
    samples: list[Sample] = []
    machine = ran.worker(0).worker.machine

    def sample(at_ns: Ns) -> None:
        samples.append((machine.waiting + machine.running, machine.running, machine.running_kv_tokens))
        if at_ns < times[-1]:
            ran.sim.at(at_ns + 10 * NS_PER_MS, sample)

    ran.sim.at(5 * NS_PER_S, sample)
    ran.sim.run()
    return ran, samples


def test_decode_settles_at_the_fixed_point_and_obeys_little() -> None:  # SPEC J3, REFERENCE 2
    base_s, row_s, tokens, seconds = 0.010, 0.0002, 40, 60.0
    rate = 50.0
    truth = LinearTruth(base_ns=base_s * 1e9, token_ns=row_s * 1e9, kv_ns=0.0)
    ran, samples = batching(rate, tokens, truth, seconds)
    streams = [s for s in ran.sim.clients.streams.values() if s.sent_ns > 5 * NS_PER_S]
    window_s = (max(s.sent_ns for s in streams) - 5 * NS_PER_S) / NS_PER_S
    arrived = len(streams) / window_s  # the rate that this sample path really had
    load = arrived * tokens * row_s
    held, batch, context = np.array(samples).mean(axis=0)
    assert batch == pytest.approx(arrived * tokens * base_s / (1 - load), rel=WITHIN)
    tpot = np.mean([s.tpot_ns for s in streams if s.tpot_ns is not None]) / 1e9
    assert tpot == pytest.approx(base_s / (1 - load), rel=WITHIN)
    sojourn = np.mean([(s.ended_ns or 0) - s.sent_ns for s in streams]) / 1e9
    assert held == pytest.approx(arrived * sojourn, rel=WITHIN)  # Little's law, from two separate measurements
    decoding = np.mean([s.times_ns[-1] - s.times_ns[0] for s in streams]) / 1e9
    area = decoding / (tokens - 1) * tokens * (tokens + 1) / 2  # step k of `tokens` equal ones holds a context of k
    assert context == pytest.approx(arrived * area, rel=WITHIN)  # E[KV tokens] = rate x E[integral of context]


def test_an_overloaded_server_has_no_fixed_point() -> None:  # so the tests above can fail
    truth = LinearTruth(base_ns=0.010 * 1e9, token_ns=0.0005 * 1e9, kv_ns=0.0)
    _, samples = batching(55.0, 40, truth, 15.0)
    early, late = np.array_split([sample[0] for sample in samples], 2)
    assert late.mean() > 1.3 * early.mean()
