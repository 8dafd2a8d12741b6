"""The scheduler that serves in production, on the virtual clock, against queueing theory (SPEC J3, REFERENCE 2 and 3).

Waits have a huge variance at load 0.8, so the simulated mean is corrected by a control variate: the same arrivals and
services through a recursion of a few lines, whose exact mean a long run gives for nothing. A scheduler that is not the
queue it is told to be differs from its control, request by request, and fails.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from headway.core.draw import draw_unit
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.cost.llm import StepCostParams
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sim.driver import SimParams
from headway.sim.fleet import FRONT, Fleet, FleetParams
from headway.sim.network import NetworkParams
from headway.sim.tokenless import TokenlessEngine
from headway.sim.truth import LinearTruth
from headway.workload.arrivals import poisson
from headway.workload.lengths import Lengths
from headway.workload.offered import Offered

LOAD = 0.8
MEAN_TOKENS = 40
STEP: Ns = NS_PER_MS
SERVICE: Ns = MEAN_TOKENS * STEP
COUNT = 800
LONG = 4_000_000
FCFS = PolicyChoice("fcfs")
WITHIN = 0.02  # the bound
Sample = tuple[int, int, int]  # requests, running among them, their context in tokens


def request(place: int, tokens: int, at_ns: Ns, prompt: int = 1) -> LlmRequest:
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    name, words = RequestId(f"req-{place}"), (place % 99,) * prompt
    predicted = {"output_tokens_predicted": tokens}
    return LlmRequest(name, TenantId("t"), ModelId("synthetic"), words, sampling, at_ns, **predicted)


def server(truth: LinearTruth, max_seqs: int = 1, order: PolicyChoice = FCFS, step_tokens: int = 100_000) -> Fleet:
    """One replica on a network without latency: `max_seqs` sequences at a time, prompts as whole as a step holds."""
    ran = Fleet(
        FleetParams(
            engine=SyntheticParams(kv_blocks=4096),
            llm=LlmParams(
                max_seqs=max_seqs,
                step_tokens=step_tokens,
                chunk=PolicyChoice("constant", {"tokens": step_tokens}),
                order=order,
                async_depth=1,
                prefix_cache=False,
                decisions=False,
            ),
            worker=WorkerConfig(credits=1),
            front=FrontConfig(room=Room(engine_queue_ms=1e9), admission=PolicyChoice("open")),
            truth=truth,
            belief=StepCostParams(base_ns=0.0, token_ns=truth.token_ns, learn=False),
            sim=SimParams(network=NetworkParams(latency_ns=0), flush_ns=0),
        )
    )
    executor = ran.sim.lives[ran.replicas[0]].executor
    assert executor is not None
    executor.engine = TokenlessEngine(ran.sim.offers.lengths)
    return ran


class Given:
    """These requests, in this order."""

    def __init__(self, requests: Sequence[LlmRequest]) -> None:
        self.requests = requests

    def first(self) -> Iterator[Offered]:
        return (Offered(item, item.max_tokens) for item in self.requests)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> None:
        return None


def waits(ran: Fleet, requests: Sequence[LlmRequest]) -> np.ndarray:
    """Run; return how long each request was not served, in mean services."""
    ran.sim.offer(FRONT, Given(requests))
    assert ran.sim.serve()
    evidence = [ran.sim.clients.streams[item.id].evidence for item in requests]
    return np.array([record.queue_wait_ms for record in evidence if record is not None]) / (SERVICE / NS_PER_MS)


def tokens_of(kind: str, place: int) -> int:
    """Tokens with mean MEAN_TOKENS: exponential (as geometric), constant, or two-point with E[S^2] = 6.5."""
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


ONE_BY_ONE = LinearTruth(base_ns=0.0, token_ns=float(STEP), kv_ns=0.0)  # a service is one prefill of so many tokens


@pytest.mark.parametrize(("kind", "wait"), [("M/M/1", 4.0), ("M/D/1", 2.0), ("M/G/1", 13.0)])
def test_waits_are_those_of_the_queue(kind: str, wait: float) -> None:  # SPEC J3, REFERENCE 3
    times = list(poisson(LOAD * NS_PER_S / SERVICE, COUNT, seed=5, start_ns=NS_PER_MS))
    services = [tokens_of(kind, place) for place in range(COUNT)]
    asked = [request(place, 1, at_ns, services[place]) for place, at_ns in enumerate(times)]
    simulated = waits(server(ONE_BY_ONE), asked)
    gaps = np.diff(np.array([0, *times])) / SERVICE
    control = lindley(gaps, np.array(services) / MEAN_TOKENS)
    assert simulated == pytest.approx(control, abs=1e-6)  # request by request, not only in the mean
    corrected = simulated.mean() - control.mean() + long_run_mean(kind)
    assert corrected == pytest.approx(wait, rel=WITHIN)


def shortest_first(times: Sequence[float], services: Sequence[float]) -> list[float]:
    """Waits when the shortest that is there is served next, and nobody is interrupted."""
    found, queue, now, place = [0.0] * len(times), [(0.0, -1)][:0], 0.0, 0
    while place < len(times) or queue:
        if not queue:
            now = max(now, times[place])
        while place < len(times) and times[place] <= now:
            heapq.heappush(queue, (services[place], place))
            place += 1
        took, served = heapq.heappop(queue)
        found[served] = now - times[served]
        now += took
    return found


def test_the_shortest_first_waits_half_as_long() -> None:  # SPEC J3, REFERENCE 3: SJF on M/M/1
    times = list(poisson(LOAD * NS_PER_S / SERVICE, COUNT, seed=5, start_ns=NS_PER_MS))
    services = [tokens_of("M/M/1", place) for place in range(COUNT)]
    asked = [request(place, 1, at_ns, services[place]) for place, at_ns in enumerate(times)]
    order = PolicyChoice("shortest_predicted", {"stretch": 1_000_000})  # waiting counts for nothing
    simulated = waits(server(ONE_BY_ONE, order=order), asked)
    control = shortest_first([at_ns / SERVICE for at_ns in times], [tokens / MEAN_TOKENS for tokens in services])
    assert simulated == pytest.approx(control, abs=1e-6)
    draws = np.random.default_rng(13)
    count = 400_000
    long_run = shortest_first(list(np.cumsum(draws.exponential(1 / LOAD, count))), list(draws.exponential(1.0, count)))
    assert simulated.mean() - np.mean(control) + np.mean(long_run) == pytest.approx(1.882, rel=WITHIN)


def remaining_first(times: Sequence[float], services: Sequence[float]) -> list[float]:
    """Responses when what has the least left is served, whoever else must pause."""
    found, queue, now, place = [0.0] * len(times), [(0.0, -1)][:0], 0.0, 0
    while place < len(times) or queue:
        if not queue:
            now = max(now, times[place])
        while place < len(times) and times[place] <= now:
            heapq.heappush(queue, (services[place], place))
            place += 1
        left, served = heapq.heappop(queue)
        until = now + left
        if place < len(times) and times[place] < until:
            heapq.heappush(queue, (until - times[place], served))
            now = times[place]
        else:
            found[served], now = until - times[served], until
    return found


def test_the_shortest_remaining_first_responds_as_srpt() -> None:  # SPEC J3, REFERENCE 3: SRPT on M/M/1
    """Preemptive at step boundaries: a step is 1/80 of a mean service, and who comes or ends waits for its end."""
    count, mean, step_tokens = 250, 800, 10
    times = list(poisson(LOAD * NS_PER_S / SERVICE, count, seed=5, start_ns=NS_PER_MS))
    lengths = Lengths(kind="geometric", mean=mean, longest=100_000)
    services = [lengths.draw(5, "output", place) for place in range(count)]
    order = PolicyChoice("shortest_remaining", {"stretch": 1_000_000})  # waiting counts for nothing
    truth = LinearTruth(base_ns=0.0, token_ns=SERVICE / mean, kv_ns=0.0)
    ran = server(truth, max_seqs=step_tokens, order=order, step_tokens=step_tokens)
    asked = [request(place, 1, at_ns, services[place]) for place, at_ns in enumerate(times)]
    ran.sim.offer(FRONT, Given(asked))
    assert ran.sim.serve()
    streams = [ran.sim.clients.streams[item.id] for item in asked]
    simulated = np.array([(stream.ended_ns or 0) - stream.sent_ns for stream in streams]) / SERVICE
    control = remaining_first([at_ns / SERVICE for at_ns in times], [tokens / mean for tokens in services])
    step = step_tokens / mean
    assert 0 < simulated.mean() - np.mean(control) < 2 * step
    draws = np.random.default_rng(19)
    gaps, works = draws.exponential(1 / LOAD, 400_000), draws.exponential(1.0, 400_000)
    long_run = np.mean(remaining_first(list(np.cumsum(gaps)), list(works)))
    assert simulated.mean() - np.mean(control) + long_run == pytest.approx(2.358, rel=WITHIN)


def several_servers(times: Sequence[float], services: Sequence[float], servers: int) -> np.ndarray:
    """Waits when the first in the queue takes the first server that is free (Kiefer and Wolfowitz)."""
    free, found = [0.0] * servers, []
    for at, took in zip(times, services, strict=True):
        begun = max(at, free[0])
        heapq.heapreplace(free, begun + took)
        found.append(begun - at)
    return np.array(found)


def test_a_batch_without_interference_is_a_queue_of_many_servers() -> None:  # SPEC J3, REFERENCE 3: Erlang C(8, 6.4)
    servers, count = 8, 1500
    times = list(poisson(servers * LOAD * NS_PER_S / SERVICE, count, seed=5, start_ns=NS_PER_MS))
    services = [tokens_of("M/M/1", place) for place in range(count)]
    truth = LinearTruth(base_ns=float(STEP), token_ns=0.0, kv_ns=0.0)  # a token is a step, however many share it
    asked = [request(place, services[place], at_ns) for place, at_ns in enumerate(times)]
    simulated = waits(server(truth, servers), asked)
    at, took = np.array(times) / SERVICE, np.array(services) / MEAN_TOKENS
    control = several_servers(list(at), list(took), servers)
    step = STEP / SERVICE  # who comes while a step runs waits for its end, with a free seat or without
    late, due = (simulated > step).mean(), (control > 0).mean()
    draws = np.random.default_rng(17)
    gaps, works = draws.exponential(1 / (servers * LOAD), 400_000), draws.exponential(1.0, 400_000)
    long_run = (several_servers(list(np.cumsum(gaps)), list(works), servers) > 0).mean()
    assert late - due + long_run == pytest.approx(0.4576, rel=WITHIN)
    assert simulated == pytest.approx(control, abs=3 * step)


def batching(times: list[Ns], tokens: int, truth: LinearTruth) -> tuple[Fleet, list[Sample]]:
    """A batching replica under load, sampled every 7.3 ms after a warm-up: never in step with it."""
    ran = server(truth, max_seqs=256)
    ran.sim.offer(FRONT, Given([request(place, tokens, at_ns) for place, at_ns in enumerate(times)]))
    samples: list[Sample] = []
    machine = ran.worker(0).worker.machine

    def sample(at_ns: Ns) -> None:
        samples.append((machine.waiting + machine.running, machine.running, machine.running_kv_tokens))
        if at_ns < times[-1]:
            ran.sim.at(at_ns + 7_300_000, sample)

    ran.sim.at(5 * NS_PER_S, sample)
    assert ran.sim.serve()
    return ran, samples


def even(rate_per_s: float, count: int) -> list[Ns]:
    """Arrivals without variance: the fixed point is exact for a load that does not vary."""
    return [NS_PER_MS + round(place * NS_PER_S / rate_per_s) for place in range(count)]


def random(rate_per_s: float, count: int) -> list[Ns]:
    return list(poisson(rate_per_s, count, seed=9, start_ns=NS_PER_MS))


@pytest.mark.parametrize(("times", "within"), [(even(50.0, 1000), 0.003), (random(40.0, 2400), WITHIN)])
def test_decode_settles_at_the_fixed_point_and_obeys_little(times: list[Ns], within: float) -> None:
    # SPEC J3, REFERENCE 2
    base_s, row_s, tokens = 0.010, 0.0002, 40
    truth = LinearTruth(base_ns=base_s * 1e9, token_ns=row_s * 1e9, kv_ns=0.0)
    ran, samples = batching(times, tokens, truth)
    until_ns = times[-1] - NS_PER_S  # the last ones find a batch that shrinks
    streams = [s for s in ran.sim.clients.streams.values() if 5 * NS_PER_S < s.sent_ns < until_ns]
    window_s = (max(s.sent_ns for s in streams) - 5 * NS_PER_S) / NS_PER_S
    arrived = len(streams) / window_s  # the rate that this sample path really had
    load = arrived * tokens * row_s
    held, batch, context = np.array(samples).mean(axis=0)
    assert batch == pytest.approx(arrived * tokens * base_s / (1 - load), rel=within)
    tpot = np.mean([s.tpot_ns for s in streams if s.tpot_ns is not None]) / 1e9
    assert tpot == pytest.approx(base_s / (1 - load), rel=within)
    sojourn = np.mean([(s.ended_ns or 0) - s.sent_ns for s in streams]) / 1e9
    assert held == pytest.approx(arrived * sojourn, rel=within)  # Little's law, from two separate measurements
    decoding = np.mean([s.times_ns[-1] - s.times_ns[0] for s in streams]) / 1e9
    area = decoding / (tokens - 1) * tokens * (tokens + 1) / 2  # step k of `tokens` equal ones holds a context of k
    assert context == pytest.approx(arrived * area, rel=within)  # E[KV tokens] = rate x E[integral of context]


def test_an_overloaded_server_has_no_fixed_point() -> None:  # so the tests above can fail
    truth = LinearTruth(base_ns=0.010 * 1e9, token_ns=0.0005 * 1e9, kv_ns=0.0)
    _, samples = batching(random(55.0, 800), 40, truth)
    early, late = np.array_split([sample[0] for sample in samples], 2)
    assert late.mean() > 1.3 * early.mean()
