"""The scheduler and the synthetic engine together: rows that stay in the engine, rows that are saved and come back."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.request import Content, DiffusionRequest
from headway.cost.diffusion_belief import DenoiseCost
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.registry import PolicyChoice


def painted(arrivals: list[list[DiffusionRequest]], params: DiffusionParams) -> tuple[dict[str, list[bytes]], int]:
    """Add what comes before each plan, run to the end; return the pictures by request, and rows interrupted."""
    machine, engine = DiffusionMachine(params, DenoiseCost(COST)), SyntheticDenoiser(DenoiserParams(0, 0.0))
    names: dict[int, str] = {}
    found: dict[str, list[bytes]] = {}
    waiting = list(arrivals)
    while True:
        for request in waiting.pop(0) if waiting else ():
            names[machine.add(request)] = request.id
        plan = machine.plan()
        if plan is None:
            if waiting:
                continue  # nobody has come yet
            assert engine.held == 0
            return found, machine.preemptions
        done = engine.run(plan)
        assert done.failed == ()
        saved = {row.seq: one.body for row in done.made for one in row.made if one.kind == "checkpoint"}
        for row in done.made:
            found.setdefault(names[row.seq], []).extend(one.body for one in row.made if one.kind == "picture")
        machine.done(plan.step, saved=saved)
        machine.check_invariants()


@pytest.mark.parametrize("resident_max", [0, 2, 9])
def test_pictures_are_those_of_requests_that_nobody_interrupted(resident_max: int) -> None:  # SPEC F6
    rng = Random(resident_max)
    arrivals: list[list[DiffusionRequest]] = [[] for _ in range(201)]
    for number in range(40):
        steps, size = rng.choice([(2, 64), (3, 64), (30, 96), (30, 96)])
        content = Content(prompt=f"a picture of {number}")
        request = replace(picture(f"req-{number}", steps, size), seed=number, n=rng.choice([1, 2]), content=content)
        arrivals[rng.randrange(200)].append(request)
    arrivals[-1].append(picture("req-last"))
    preempt = Preemption(times_max=3, resident_max=resident_max, price_s=0.0)
    together = DiffusionParams(order=PolicyChoice("sjf"), gain_min=1.0, batch_max=2, preempt=preempt)
    found, interrupted = painted(arrivals, together)
    assert interrupted > 3
    for request in (one for some in arrivals for one in some):
        alone, _ = painted([[request]], DiffusionParams())
        assert found[request.id] == alone[request.id]
        assert len(alone[request.id]) == request.n
