"""Priority and fairness as properties of random worlds (SPEC B8: P7 and P8 of field/engines.md)."""

from random import Random

import pytest
from tests.property.llm_world import World, make_limits, random_config
from tests.property.rig import Rig

from headway.core.request import Slo
from headway.sched.llm.admission import find_hits, fits
from headway.sched.llm.policies.order.fair import Fair
from headway.sched.llm.policies.order.priority import Priority

PATIENCE = 1  # plan: "not beyond one step" (P7 of field/engines.md)


class PriorityWorld(World):
    """Counts how long a head lacks a seat or blocks that somebody holds whom it outranks."""

    waits = head = 0
    longest = 0

    def plan(self) -> bool:
        planned = super().plan()
        m = self.machine.state
        assert isinstance(m.order, Priority)
        head = m.order.head(m.step + 1)
        outranked = head is not None and any(m.order.outranks(head, seq) for seq in m.order.victims(m.step + 1))
        if head is not None and m.running < m.params.max_seqs:
            outranked = outranked and not fits(m, head, find_hits(m, head, m.step + 1), soon=True)
        same = head is not None and head.id == self.head
        self.waits = (self.waits + 1 if same else 1) if outranked and planned else 0
        self.head = 0 if head is None else head.id
        self.longest = max(self.longest, self.waits)
        return planned


# SPEC B8, A9
@pytest.mark.parametrize("batch", range(3))
def test_nobody_waits_long_behind_one_it_outranks(batch: int) -> None:
    waited = 0
    for seed in range(batch * 40, batch * 40 + 40):
        rng = Random(f"priority-{seed}")
        world = PriorityWorld(rng, random_config(rng, ("priority",)))
        world.play()
        assert world.longest <= PATIENCE, f"seed {seed}: {world.longest} plans"
        waited = max(waited, world.longest)
    assert waited > 0, "nobody ever waited: the worlds are too kind"


# SPEC B8, A10: virtual token counters differ by at most twice the largest share (Sheng et al., theorem 4.4)
@pytest.mark.parametrize("seed", range(6))
def test_the_counters_of_backlogged_tenants_stay_close(seed: int) -> None:
    rng = Random(seed)
    seats, prompt, output, cost = rng.randint(1, 4), 20, 12, rng.randint(1, 3)
    rig = Rig(
        limits=make_limits(kv_blocks=200),
        order="fair",
        order_params={"output_cost": cost},
        max_seqs=seats,
        async_depth=rng.randint(1, 3),
    )
    weights = {"a": 1, "b": rng.choice([1, 2]), "c": rng.choice([1, 3])}
    order = rig.machine.state.order
    assert isinstance(order, Fair)

    def refill() -> None:
        """Everybody has something waiting, always."""
        queued = [rig.requests[seq].tenant for seq in rig.machine.state.seqs if not rig.seq(seq).table]
        for tenant, weight in weights.items():
            while queued.count(tenant) < 2:
                rig.new(rng.randint(1, prompt), rng.randint(1, output), tenant=tenant, weight=weight)
                queued.append(tenant)

    bound = 2 * max(prompt, cost * seats * (prompt + output))
    worst = 0.0
    for _ in range(250):
        refill()
        rig.step()
        counters = [order.served(tenant, rig.machine.state.step + 1) / 720_720 for tenant in weights]
        worst = max(worst, max(counters) - min(counters))
    assert worst <= bound
    assert worst > 0
    rig.drain()


# SPEC B8, A9: under a stream of urgent requests the calm one ages and gets in
def test_aging_bounds_the_wait_of_the_least_urgent() -> None:
    rig = Rig(order="priority", order_params={"age_ms": 1}, max_seqs=1, async_depth=2, preemptions_max=2)
    calm = rig.new(4, 6, urgency=0, arrived_ns=0)
    clock = 0
    for _ in range(400):
        clock += 300_000
        if rig.machine.waiting < 3:
            rig.new(4, 3, urgency=3, arrived_ns=clock)
        rig.step()
        if calm in rig.ended:
            break
    assert calm in rig.ended
    rig.drain()


@pytest.mark.parametrize(
    "order", ["shortest_predicted", "shortest_remaining", "least_slack", "lpm", "fair", "fcfs", "priority"]
)
def test_no_order_starves_a_request_that_everybody_else_beats(order: str) -> None:
    params: dict[str, dict[str, object]] = {
        "shortest_predicted": {"stretch": 1},
        "shortest_remaining": {"stretch": 1},
        "least_slack": {"default_ms": 1},
        "lpm": {"skips_max": 4},
        "priority": {"age_ms": 1},
    }
    rig = Rig(order=order, order_params=params.get(order, {}), max_seqs=1, async_depth=2)
    poor = rig.new(30, 8, arrived_ns=0, predicted=50)
    clock = 0
    for _ in range(900):
        clock += 1_000_000
        while rig.machine.waiting < 3:
            slo = Slo(ttft_deadline_ns=clock + 1)
            rig.new(4, 3, arrived_ns=clock, predicted=1, urgency=2, slo=slo, tenant=f"t{clock % 3}")
        rig.step()
        if poor in rig.ended:
            break
    assert poor in rig.ended, f"{order} starves it"
    rig.drain()
