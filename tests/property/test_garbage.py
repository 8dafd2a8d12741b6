"""What requests leave behind is freed by reference counts: the collector of cycles finds nothing of theirs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.property.llm_world import make_limits, make_request
from tests.sim.test_skeleton import build, picture
from tests.sim.workloads import mix

from headway.core.blockhash import block_hashes
from headway.core.events import StepDone, Stopped
from headway.core.plans import StepTiming
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

BLOCK, RUNNING = 4, 24


@contextmanager
def collector_off() -> Iterator[None]:
    """Cycles stay until somebody looks for them; none of others are there."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def churn(m: LlmMachine, rng: Random, first: int, steps: int) -> int:
    """As many arrive as end, at stops and limits; a few are cancelled. Returns how many came."""
    root = make_request(0, (1,)).cache_root
    number = first
    for _ in range(steps):
        while m.live < RUNNING + 8:
            number += 1
            prompt = tuple(rng.randrange(1, 5) for _ in range(rng.randint(4, 40)))
            hashes = block_hashes(root, prompt, BLOCK)
            m.add(make_request(number, prompt, rng.randint(2, 30), root=root, hashes=hashes), (), number)
        plan = m.plan(number)
        m.take_decisions()
        m.take_kv_events(everything=False)
        if plan is None or m.state.step - m.state.done >= m.state.params.async_depth:
            ended = rng.sample(sorted(m.state.seqs), k=rng.randrange(2))
            stopped = tuple(Stopped(seq) for seq in ended if m.state.seqs[seq].table)
            m.step_done(StepDone(0, "test", m.state.done + 1, (), (), StepTiming(0, 0, 9), stopped))
    return number - first


def test_a_machine_leaves_no_cycles_whatever_its_requests_go_through() -> None:
    params = LlmParams(
        max_seqs=RUNNING,
        step_tokens=200,
        chunk=PolicyChoice("constant", {"tokens": 16}),
        order=PolicyChoice("priority"),
        swap=True,
    )
    limits = make_limits(block_size=BLOCK, kv_blocks=150, host_slots=60)
    m = LlmMachine(params, limits, StepCost(StepCostParams(kv_bytes_per_block=1, learn=False)))
    rng = Random(1)
    with collector_off():
        came = churn(m, rng, 0, 600)
        assert gc.collect() == 0
    assert came > 300
    counts = m.counters()
    assert min(counts["preemptions"], counts["swaps"], counts["prefix_hit_tokens"]) > 10


def test_nodes_leave_none_either() -> None:
    ran = build(seed=3)
    ran.offer([*mix(40, seed=3), *[picture(place, 3) for place in range(5)]])
    with collector_off():
        ran.sim.run(is_done=lambda: len(ran.sim.clients.streams) == 45 and not ran.sim.clients.open)
        assert gc.collect() == 0
    assert all(stream.end is not None for stream in ran.sim.clients.streams.values())
