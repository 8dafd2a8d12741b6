"""Belief and truth: no policy can reach what really takes time; it learns from events that live has too."""

import gc
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.sim.systems import linear, ran, scenario
from tests.sim.workloads import fleet, mix, run

from headway.cost.llm import StepCost, StepShape
from headway.cost.roofline import RooflineModel
from headway.sim.driver import Simulation
from headway.sim.executor import SimExecutor
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.linear import LinearStep
from headway.sim.model_truth import ModelTruth
from headway.sim.pools import PoolParams, TruthParams
from headway.sim.scenario import RunSettings
from headway.sim.system import Pool, System
from headway.sim.truth import LinearTruth
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

OUTSIDE = (Simulation, SimExecutor, LinearTruth, ModelTruth, RooflineModel, LinearStep, Pool, System)


def reachable(root: object) -> Iterator[object]:
    """Everything that a node's own state leads to; classes, modules and functions' globals are code, not state."""
    seen: dict[int, object] = {}
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | ModuleType):
            continue
        seen[id(item)] = item
        yield item
        if hasattr(item, "__globals__"):
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
            stack += item.__defaults__ or ()
        else:
            stack += gc.get_referents(item)


def test_no_node_reaches_the_truth() -> None:  # SPEC J1
    served = run(fleet(truth=LinearTruth(base_ns=7_000_000.0, jitter=0.1)), mix(20))
    for node in (FRONT, CONTROL, *served.replicas):
        found = [item for item in reachable(served.sim.lives[node].node) if isinstance(item, OUTSIDE)]
        assert found == []


def test_no_node_of_a_system_reaches_the_truth() -> None:  # SPEC J1
    pools = (PoolParams(name="p", role="prefill"), linear(name="d", role="decode"), linear(name="m", model="other"))
    system, _ = ran(scenario(*pools))
    for node in (FRONT, CONTROL, *system.replicas):
        assert [item for item in reachable(system.sim.lives[node].node) if isinstance(item, OUTSIDE)] == []
    worker = system.worker(system.replicas[0])
    worker.worker.secret = lambda: system.pools[0].truths  # type: ignore[attr-defined]  # what a policy must not do
    assert any(isinstance(item, ModelTruth) for item in reachable(worker))


def test_beliefs_begin_at_the_model_and_end_at_the_truth() -> None:  # SPEC J1, A2
    """Replicas start from the unperturbed roofline; after a while they believe what their own steps took."""
    slow = PoolParams(truth=TruthParams(scale=1.5, jitter=0.02, spread=0.0))
    source = Synthetic(count=150, arrivals=Poisson(rate_per_s=10.0), output=Lengths(mean=40.0))
    system, _ = ran(scenario(slow, workload=(source,), sim=RunSettings()))
    (pool,) = system.pools
    shape = StepShape(8, 8 * 600)
    before, truth = StepCost(pool.replica.belief), pool.replica.step.step_ns(shape)
    after = system.worker(pool.replicas[0]).worker.machine.state.belief  # type: ignore[attr-defined]  # the real machine's
    assert before.step_ns(8, 8 * 600) == pytest.approx(truth, rel=0.05)
    assert after.step_ns(8, 8 * 600) == pytest.approx(1.5 * truth, rel=0.05)


def test_the_search_would_find_it() -> None:
    served = fleet()
    node = served.front
    node.router.secret = [lambda: served.params.truth]  # type: ignore[attr-defined]  # what a policy must not do
    assert any(isinstance(item, OUTSIDE) for item in reachable(node))


def test_a_belief_that_starts_wrong_learns_the_truth_from_steps() -> None:  # SPEC J3, A2
    truth = LinearTruth(base_ns=20_000_000.0, token_ns=100_000.0, kv_ns=0.0)
    served = run(fleet(replicas=1, truth=truth), mix(40, seed=2, gap_ns=20_000_000))
    rates = served.worker(0).worker.rates
    decode_ns = truth.base_ns + truth.token_ns
    assert decode_ns <= rates.step_ns <= decode_ns + truth.token_ns * 16
    belief = served.worker(0).worker.machine.state.belief  # type: ignore[attr-defined]  # the real machine's
    assert belief.step_ns(1, 10) == pytest.approx(decode_ns, rel=0.1)
