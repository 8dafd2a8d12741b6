"""CPU time of the LLM scheduler alone: steady decode and churn, against the naive scheduler of the tests.

    PYTHONPATH=src:. python benchmarks/scheduler.py [steady] [churn] [pressure] [orders] [--steps N]

No engine: results are empty, requests end by their limit. The figures are process CPU time of `step_done` + `plan`.
"""

import argparse
import gc
import time
from collections.abc import Callable
from random import Random

from tests.property.naive import NaiveScheduler

from headway.core.blockhash import block_hashes, cache_root
from headway.core.events import StepDone, Stopped
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import StepTiming
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest, SamplingParams
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

PROMPT, OUTPUT = 1000, 200
ROOT = cache_root(model="bench")
TIMING = StepTiming(0, 0, 10_000_000)
clock = time.process_time_ns


def limits(running: int, block: int, tokens: int, share: float = 1.0) -> ModelLimits:
    """Room for `running` sequences of `tokens`, times `share`."""
    blocks = int((running + running // 8 + 64) * (-(-tokens // block) + 1) * share)
    return ModelLimits("bench", 50_000, 1 << 20, block, blocks, 1 << 16, 4096, 1, (0,), "f32", "none")


def request(number: int, prompt: int, output: int, block: int, *, cache: bool, tenants: int = 16) -> LlmRequest:
    """A prompt that nobody shares: the worst case for the cache."""
    tokens = tuple(range(number * 4000, number * 4000 + prompt))
    hashes = block_hashes(ROOT, tokens, block) if cache else ()
    return LlmRequest(
        RequestId(f"req-{number}"),
        TenantId(f"t{number % tenants}"),
        ModelId("bench"),
        tokens,
        SamplingParams(max_tokens=output),
        number,
        urgency=number % 3,
        block_hashes=hashes,
        cache_root=ROOT if cache else b"",
    )


def done(step: int, stopped: tuple[Stopped, ...] = ()) -> StepDone:
    """What an engine would report."""
    return StepDone(0, "bench", step, (), (), TIMING, stopped)


def report(name: str, times: list[int], visits: float) -> None:
    """One line of percentiles."""
    times.sort()
    n = len(times)
    p50, p99, mean = times[n // 2] / 1e3, times[n * 99 // 100] / 1e3, sum(times) / n / 1e3
    print(f"{name:64s} p50 {p50:8.1f}  p99 {p99:8.1f}  mean {mean:8.1f} us  visits {visits:7.1f}", flush=True)


def machine(running: int, room: ModelLimits, *, cache: bool, order: str = "fcfs", swap: bool = True) -> LlmMachine:
    """Everything on: swap, decisions, a belief that learns."""
    params = LlmParams(
        max_seqs=running,
        step_tokens=11 * running + 512,
        order=PolicyChoice(order),
        prefix_cache=cache,
        swap=swap,
    )
    return LlmMachine(params, room, StepCost(StepCostParams(kv_bytes_per_block=1 << 16)))


def steady(running: int, block: int, steps: int, order: str) -> None:
    """Everybody decodes and nobody leaves."""
    m = machine(running, limits(running, block, 400 + 2 * steps), cache=order == "lpm", order=order)
    rng = Random(1)
    for number in range(running):
        m.add(request(number, rng.randint(1, 300), 2 * steps + 100, block, cache=order == "lpm"), (), 0)
    m.plan(0)
    while m.state.decodes < running:
        m.plan(0)
        m.step_done(done(m.state.done + 1))
    m.take_decisions()
    times, before = [], m.state.visits
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        start = clock()
        m.step_done(done(m.state.done + 1))
        m.plan(0)
        times.append(clock() - start)
    if m.take_decisions():
        raise AssertionError("steady decode recorded a decision")
    report(f"steady delta {order} running {running} block {block}", times, (m.state.visits - before) / steps)


def steady_naive(running: int, steps: int) -> None:
    """The same by visiting everybody."""
    room = limits(running, 16, 400 + 2 * steps)
    params = LlmParams(max_seqs=running, step_tokens=11 * running + 512, prefix_cache=False)
    naive = NaiveScheduler(params, room, StepCost(StepCostParams()))
    rng = Random(1)
    for number in range(running):
        naive.add(request(number, rng.randint(1, 300), 2 * steps + 100, 16, cache=False), (), 0)
    naive.plan(0)
    while len(naive.decoding) < running:
        naive.plan(0)
        naive.step_done(done(naive.done + 1))
    times, before = [], naive.visits
    for _ in range(steps):
        start = clock()
        naive.step_done(done(naive.done + 1))
        naive.plan(0)
        times.append(clock() - start)
    report(f"steady naive fcfs running {running} block 16", times, (naive.visits - before) / steps)


def churn(running: int, block: int, steps: int, *, cache: bool, order: str = "fcfs", share: float = 1.0) -> None:
    """Closed loop: each end brings an arrival; output lengths are geometric with mean OUTPUT."""
    m = machine(running, limits(running, block, PROMPT + 2048, share), cache=cache, order=order)
    rng, number = Random(2), 0
    ends: dict[int, list[int]] = {}

    def arrive(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            m.add(request(number, PROMPT, 2048, block, cache=cache), (), number)

    arrive(running + 8)
    m.plan(0)
    times: list[int] = []
    before, warm = 0, 3 * OUTPUT
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    seen: set[int] = set()
    for i in range(warm + steps):
        if i == warm:
            before = m.state.visits
        step = m.state.done + 1
        stopped = tuple(Stopped(seq) for seq in ends.pop(step, ()) if seq in m.state.seqs)
        start = clock()
        m.step_done(done(step, stopped))
        spent = clock() - start
        arrive(running + 8 - m.live)
        start = clock()
        plan = m.plan(i)
        spent += clock() - start
        m.take_decisions()
        if i >= warm:
            times.append(spent)
        if plan is None:
            raise AssertionError("idle")
        for chunk in plan.chunks:
            if chunk.seq not in seen and chunk.start == 0:
                seen.add(chunk.seq)
                length = 2 + min(2000, int(rng.expovariate(1 / OUTPUT)))
                ends.setdefault(plan.step + 1 + length, []).append(chunk.seq)
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    counters = m.counters()
    name = f"churn delta {order} running {running} block {block} cache {cache}"
    if share < 1:
        name += f" preemptions {counters['preemptions']}"
    report(name, times, (m.state.visits - before) / steps)


def run_steady(steps: int) -> None:
    """The table of field/delta-scheduler.md."""
    for running in (64, 256, 1024):
        steady(running, 16, steps, "fcfs")
        steady(running, 64, steps, "fcfs")
        steady_naive(running, max(steps // 10, 50))


def run_orders(steps: int) -> None:
    """Every order in steady decode and with churn."""
    for order in ("fcfs", "priority", "shortest_predicted", "shortest_remaining", "least_slack", "lpm", "fair"):
        steady(256, 16, steps, order)
        churn(256, 16, steps // 2, cache=True, order=order)


def run_churn(steps: int) -> None:
    """Arrivals and ends in most steps."""
    for running in (64, 256, 1024):
        for cache in (False, True):
            churn(running, 16, steps // 2, cache=cache)
        churn(running, 64, steps // 2, cache=True)


def run_pressure(steps: int) -> None:
    """Too few blocks for the batch: preemption by swap or recompute all the time."""
    for running in (256, 1024):
        plenty = limits(running, 16, PROMPT + 2048).kv_blocks
        churn(running, 16, steps // 2, cache=False, share=72 * running / plenty)  # a request ends with about 76


RUNS: dict[str, Callable[[int], None]] = {
    "steady": run_steady,
    "churn": run_churn,
    "pressure": run_pressure,
    "orders": run_orders,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="any of " + ", ".join(RUNS))
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for wanted in options.runs or list(RUNS):
        RUNS[wanted](options.steps)
