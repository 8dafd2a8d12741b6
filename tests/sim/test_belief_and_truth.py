"""Belief and truth: no policy can reach what really takes time; it learns from events that live has too."""

import gc
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.sim.workloads import fleet, mix, run

from headway.sim.driver import Simulation
from headway.sim.executor import SimExecutor
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.truth import LinearTruth

OUTSIDE = (Simulation, SimExecutor, LinearTruth)


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
    ran = run(fleet(truth=LinearTruth(base_ns=7_000_000.0, jitter=0.1)), mix(20))
    for node in (FRONT, CONTROL, *ran.replicas):
        found = [item for item in reachable(ran.sim.lives[node].node) if isinstance(item, OUTSIDE)]
        assert found == []


def test_the_search_would_find_it() -> None:
    ran = fleet()
    node = ran.front
    node.router.secret = [lambda: ran.params.truth]  # type: ignore[attr-defined]  # what a policy must not do
    assert any(isinstance(item, OUTSIDE) for item in reachable(node))


def test_a_belief_that_starts_wrong_learns_the_truth_from_steps() -> None:  # SPEC J3, A2
    truth = LinearTruth(base_ns=20_000_000.0, token_ns=100_000.0, kv_ns=0.0)
    ran = run(fleet(replicas=1, truth=truth), mix(40, seed=2, gap_ns=20_000_000))
    rates = ran.worker(0).worker.rates
    decode_ns = truth.base_ns + truth.token_ns
    assert decode_ns <= rates.step_ns <= decode_ns + truth.token_ns * 16
    belief = ran.worker(0).worker.machine.state.belief  # type: ignore[attr-defined]  # the real machine's
    assert belief.step_ns(1, 10) == pytest.approx(decode_ns, rel=0.1)
