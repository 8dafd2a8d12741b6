"""Lengths that come with the requests, right or wrong, and what an order that trusts them makes of it."""

from headway.bench.simulated import simulate
from headway.sched.config import FrontConfig
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Predicted, Synthetic


def mean_ttft_ms(order: str, predicted: Predicted | None) -> float:
    """One replica with two rows, its queue in its own hands, at four fifths of what it can serve."""
    load = Synthetic(
        arrivals=Poisson(rate_per_s=2.2),
        count=150,
        prompt=Lengths(mean=64.0, cv=0.3),
        output=Lengths(mean=100.0, cv=1.5),
        predicted=predicted,
    )
    pool = PoolParams(replicas=1, scheduler=LlmParams(max_seqs=2, order=PolicyChoice(order)))
    front = FrontConfig(room=Room(engine_queue_ms=1e9, cold_requests=10**9))
    found = simulate(Scenario(pools=(pool,), workload=(load,), front=front)).summary.ttft_ms.mean
    assert found is not None
    return found


def test_the_better_lengths_are_predicted_the_shorter_the_shortest_first_order_waits() -> None:  # SPEC J2, J4
    exact, near, far = (mean_ttft_ms("shortest_predicted", Predicted(error=error)) for error in (0.0, 1.0, 3.0))
    assert exact < near < far < mean_ttft_ms("fcfs", None)
    assert exact < 0.75 * far
