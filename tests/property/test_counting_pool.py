"""In simulation a pool that only counts blocks takes the same decisions as the real one (SPEC B9)."""

from random import Random

import pytest
from tests.property.llm_world import make_limits, make_request

from headway.core.events import StepDone, Stopped
from headway.core.plans import StepPlan, StepTiming
from headway.core.request import FinishReason
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice


def decided(plan: StepPlan | None) -> object:
    """A plan without block numbers."""
    if plan is None:
        return None
    chunks = [(chunk.seq, chunk.start, chunk.count, chunk.samples, len(chunk.table)) for chunk in plan.chunks]
    grants = [seq for seq, _block in plan.grant]
    moves = (plan.leave, plan.preempt, plan.pause, plan.join, [new.seq for new in plan.new])
    return (plan.step, plan.kind, plan.decodes, plan.kv_tokens, chunks, grants, moves)


# SPEC B9
@pytest.mark.parametrize("seed", range(40))
def test_a_counting_pool_decides_the_same(seed: int) -> None:
    rng = Random(seed)
    depth, cap, watermark = rng.randint(1, 4), rng.choice([0, 1, 3]), rng.choice([0, 2])
    order = PolicyChoice(rng.choice(["fcfs", "priority", "fair"]))
    limits = make_limits(kv_blocks=rng.randint(10, 30), block_size=rng.choice([1, 4]))
    machines = []
    for pool in ("blocks", "counting"):
        params = LlmParams(
            max_seqs=6,
            step_tokens=20,
            chunk=PolicyChoice("constant", {"tokens": 7}),
            order=order,
            prefix_cache=False,
            async_depth=depth,
            preemptions_max=cap,
            watermark=watermark,
            pool=pool,  # type: ignore[arg-type]  # one of the two
        )
        machines.append(LlmMachine(params, limits, StepCost(StepCostParams(learn=False))))
    real, counting = machines
    live: list[int] = []
    preempted = step = open_steps = 0
    for turn in range(300):
        if turn < 200 and rng.random() < 0.3:
            request = make_request(turn, (1,) * rng.randint(1, 12), rng.randint(1, 18), urgency=rng.randint(0, 2))
            if (len(request.prompt) + request.sampling.max_tokens) <= limits.kv_blocks * limits.block_size:
                live.append(real.add(request, (), turn))
                assert counting.add(request, (), turn) == live[-1]
        if live and rng.random() < 0.05:
            seq = live.pop(rng.randrange(len(live)))
            assert real.stop(seq, FinishReason.CANCELLED, turn) == counting.stop(seq, FinishReason.CANCELLED, turn)
        if open_steps < depth:
            plans = [machine.plan(turn) for machine in machines]
            assert decided(plans[0]) == decided(plans[1])
            if plans[0] is not None:
                preempted += len(plans[0].preempt)
                open_steps += 1
        if open_steps and (open_steps == depth or rng.random() < 0.6):
            step, open_steps = step + 1, open_steps - 1
            running = [seq for seq in live if real.state.seqs[seq].state.name == "DECODE"] if live else []
            stops = (Stopped(rng.choice(running)),) if running and rng.random() < 0.03 else ()
            done = StepDone(turn, "test", step, (), (), StepTiming(0, 0, 0), stops)
            ended = real.step_done(done)
            assert counting.step_done(done) == ended
            over = {one.seq for one in ended}
            live = [seq for seq in live if seq not in over]
        for machine in machines:
            machine.check_invariants()
        assert real.kv_blocks_free == counting.kv_blocks_free
    assert real.counters() == counting.counters()
