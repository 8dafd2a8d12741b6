"""Belief and truth: no policy can reach what really takes time; it learns from events that live has too."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from types import ModuleType

import msgspec
import pytest
from tests.sim.systems import linear, ran, scenario
from tests.sim.workloads import fleet, mix, run

from headway.core.plans import DenoisePlan, DenoiseRow, StepPlan
from headway.cost.diffusion_belief import plan_ns
from headway.cost.fitted import CostFile
from headway.cost.fitted import LinearStep as FittedStep
from headway.cost.llm import StepCost, StepShape
from headway.cost.roofline import RooflineModel
from headway.cost.step import shape_of
from headway.sched.config import FrontConfig
from headway.sched.llm.params import CHUNKS, ORDERS, LlmParams
from headway.sched.nodes import DiffusionNode
from headway.sched.policies import ADMISSIONS, ROUTERS
from headway.sched.registry import PolicyChoice, discover
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.pools import EngineSize, PoolParams, TruthParams
from headway.sim.scenario import RunSettings
from headway.sim.system import System
from headway.sim.truth import LinearTruth
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Diffusion, PictureShape, Synthetic

STEP_MODELS = (RooflineModel, FittedStep, CostFile)  # of `cost`; a belief is another class and learns by itself
FEW = Synthetic(count=10, arrivals=Poisson(rate_per_s=20.0), prompt=Lengths(mean=200.0), output=Lengths(mean=10.0))
DECODE = StepPlan(7, 6, "decode", decodes=4, kv_tokens=400)


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
        elif isinstance(item, msgspec.Struct):  # the collector does not see into those with gc=False
            stack += [getattr(item, name) for name in item.__struct_fields__]
        else:
            stack += gc.get_referents(item)


def of_the_simulator(root: object) -> list[object]:
    """What a node reaches of the simulator (truth, its parameters, executors, the driver) or of its step models."""
    return [
        item
        for item in reachable(root)
        if type(item).__module__.startswith("headway.sim") or isinstance(item, STEP_MODELS)
    ]


def test_no_node_reaches_the_truth() -> None:  # SPEC J1
    ran_fleet = run(fleet(truth=LinearTruth(base_ns=7_000_000.0, jitter=0.1)), mix(20))
    for node in (FRONT, CONTROL, *ran_fleet.replicas):
        assert of_the_simulator(ran_fleet.sim.lives[node].node) == []


def test_no_node_of_a_prefill_and_decode_system_reaches_the_truth() -> None:  # SPEC J1
    small = PoolParams(name="p", role="prefill", engine=EngineSize(kv_blocks=400))
    pools = (small, linear(name="d", role="decode"), linear(name="m", model="other"))
    system, _ = ran(scenario(*pools, workload=(FEW,)))
    for node in (FRONT, CONTROL, *system.replicas):
        assert of_the_simulator(system.sim.lives[node].node) == []


def test_no_diffusion_node_reaches_the_truth_or_believes_it() -> None:  # SPEC J1
    draw = PoolParams(name="draw", kind="diffusion", model="FLUX.1-dev", truth=TruthParams(scale=1.4))
    wanted = scenario(draw, workload=(Diffusion(count=5, shapes=(PictureShape(),)),))
    system, kept = ran(wanted)
    assert len(kept.ended) == 5
    for node in (FRONT, CONTROL, *system.replicas):
        assert of_the_simulator(system.sim.lives[node].node) == []
    fresh = system.pools[0].build(0, 1)
    assert isinstance(fresh, DiffusionNode)
    told = fresh.worker.machine.denoise_cost
    assert told is not None
    plan = DenoisePlan(1, 0, (DenoiseRow(1, 0, 28, 28),), 1024, 1024)
    truth = system.pools[0].truths[system.replicas[0]].denoise_ns(plan)
    assert truth > 1.3 * plan_ns(told, plan)  # a new node believes the catalogue, which the truth is far from


def systems() -> list[tuple[str, str, str, str]]:
    """Every routing policy once, beside them every order, chunk and admission policy."""
    others = [cycle(sorted(discover(package))) for package in (ORDERS, CHUNKS, ADMISSIONS)]
    return [(router, next(others[0]), next(others[1]), next(others[2])) for router in sorted(discover(ROUTERS))]


@pytest.mark.parametrize(("router", "order", "chunk", "admission"), systems())
def test_no_policy_reaches_the_truth(router: str, order: str, chunk: str, admission: str) -> None:  # SPEC J1
    scheduler = LlmParams(order=PolicyChoice(order), chunk=PolicyChoice(chunk))
    front = FrontConfig(router=PolicyChoice(router), admission=PolicyChoice(admission))
    pool = linear(replicas=2, scheduler=scheduler, truth=TruthParams())
    system, kept = ran(scenario(pool, front=front, workload=(FEW,)))
    assert kept.ended
    for node in (FRONT, CONTROL, *system.replicas):
        assert of_the_simulator(system.sim.lives[node].node) == []


def test_every_policy_is_looked_at() -> None:
    for place, package in enumerate((ROUTERS, ORDERS, CHUNKS, ADMISSIONS)):
        assert {names[place] for names in systems()} == set(discover(package))


@pytest.mark.parametrize("where", ["closure", "struct", "attribute"])
def test_the_search_would_find_it(where: str) -> None:
    system, _ = ran(scenario(workload=(FEW,)))
    truth = system.pools[0].truths[system.replicas[0]]

    class Wrap(msgspec.Struct, gc=False):
        inner: object

    hidden = {"closure": lambda: truth, "struct": Wrap([truth]), "attribute": [truth]}[where]
    system.front.router.secret = hidden  # type: ignore[attr-defined]  # what a policy must not do
    assert truth in of_the_simulator(system.front)


def test_the_ring_imports_nothing_of_the_simulator() -> None:
    script = """
import importlib, pkgutil, sys
for ring in ("core", "cost", "sched"):
    package = importlib.import_module("headway." + ring)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
print([name for name in sys.modules if name.startswith(("headway.sim", "headway.live", "headway.bench"))])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def catalogued() -> System:
    """Two replicas of the catalogue's roofline, as a scenario that says nothing else gets them."""
    return ran(scenario(PoolParams(replicas=2, engine=EngineSize(kv_blocks=400)), workload=(FEW,)))[0]


def test_truth_is_not_what_beliefs_start_from_unless_a_scenario_says_so() -> None:  # SPEC J1
    (pool,) = catalogued().pools
    model_ns = pool.replica.step.step_ns(shape_of(DECODE))
    took = [truth.step_ns(DECODE) for truth in pool.truths.values()]
    assert min(took) > 1.02 * model_ns  # the catalogue is too good
    assert len(set(took)) == 2  # replicas differ
    first = next(iter(pool.truths.values()))
    later = msgspec.structs.replace(DECODE, step=8)
    assert first.step_ns(later) != first.step_ns(DECODE)  # and steps


def test_a_belief_does_not_share_the_model_that_steps_are_timed_with() -> None:  # SPEC J1
    system = catalogued()
    for node in (FRONT, CONTROL, *system.replicas):
        assert of_the_simulator(system.sim.lives[node].node) == []


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
    # Its form has no time per row beside the weights, so that it is not exact at a batch that is rare here.
    assert after.step_ns(8, 8 * 600) == pytest.approx(1.5 * truth, rel=0.12)


def test_a_belief_that_starts_wrong_learns_the_truth_from_steps() -> None:  # SPEC J3, A2
    truth = LinearTruth(base_ns=20_000_000.0, token_ns=100_000.0, kv_ns=0.0)
    ran = run(fleet(replicas=1, truth=truth), mix(40, seed=2, gap_ns=20_000_000))
    rates = ran.worker(0).worker.rates
    decode_ns = truth.base_ns + truth.token_ns
    assert decode_ns <= rates.step_ns <= decode_ns + truth.token_ns * 16
    belief = ran.worker(0).worker.machine.state.belief  # type: ignore[attr-defined]  # the real machine's
    assert belief.step_ns(1, 10) == pytest.approx(decode_ns, rel=0.1)
