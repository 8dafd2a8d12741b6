"""Every solver that the families are served with: what it foresees, and what it needs to go on."""

from typing import Any

import diffusers
import pytest
import torch
from tests.unit.engines.diffusion.asks import asked, pixels, run

from headway.core.errors import ConfigError
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.solver import SERVED, Solver, check_scheduler

pytestmark = [
    pytest.mark.filterwarnings("ignore:.algorithm_types.*dpmsolver:FutureWarning"),  # checkpoints name it still
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),  # DEIS of diffusers 0.42
]
STEPS, FLOW = 6, {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
NOISE_SOLVER = {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"}


def _by_type(name: str, *types: str, **config: Any) -> list[Any]:
    words = "-".join([name.removesuffix("Scheduler"), *map(str, config.values())])
    flow = [pytest.param(name, {**FLOW, **config}, id=f"{words}-flow")] if "flow" in types else []
    kinds = [kind for kind in types if kind != "flow"]
    return [pytest.param(name, {"prediction_type": kind, **config}, id=f"{words}-{kind}") for kind in kinds] + flow


EVERY = ("epsilon", "sample", "v_prediction")
CONFIGURED = [
    *_by_type("DDIMScheduler", *EVERY, clip_sample=False),
    *_by_type("DEISMultistepScheduler", *EVERY, "flow"),
    *_by_type("DPMSolverMultistepScheduler", *EVERY, "flow"),
    *_by_type("DPMSolverMultistepScheduler", *EVERY, **NOISE_SOLVER),
    *_by_type("DPMSolverMultistepScheduler", "epsilon", use_karras_sigmas=True),
    *_by_type("DPMSolverSinglestepScheduler", *EVERY, "flow"),
    *_by_type("DPMSolverSinglestepScheduler", *EVERY, **NOISE_SOLVER),
    *_by_type("EulerDiscreteScheduler", "epsilon", "v_prediction"),
    pytest.param("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, id="FlowMatchEuler"),
    *_by_type("UniPCMultistepScheduler", *EVERY, "flow"),
    *_by_type("UniPCMultistepScheduler", *EVERY, predict_x0=False, final_sigmas_type="sigma_min"),
]


def solver(name: str, config: dict[str, Any]) -> tuple[Any, Solver]:
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(STEPS)
    check_scheduler(scheduler)
    return scheduler, Solver(scheduler)


def noised(scheduler: Any, finished: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
    """By the scheduler's own forward process."""
    at = scheduler.timesteps[step : step + 1]
    mix = scheduler.scale_noise if hasattr(scheduler, "scale_noise") else None
    mixed: torch.Tensor = mix(finished, at, noise) if mix else scheduler.add_noise(finished, noise, at)
    return mixed


def true_prediction(scheduler: Any, finished: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
    """What a perfect model says, with the shares of both that the forward process itself shows."""
    one, zero = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    alpha, sigma = noised(scheduler, one, zero, step), noised(scheduler, zero, one, step)
    length = (alpha**2 + sigma**2) ** 0.5
    return {
        "epsilon": noise,
        "sample": finished,
        "v_prediction": (alpha * noise - sigma * finished) / length,
        "flow_prediction": noise - finished,
    }[scheduler.config.get("prediction_type", "flow_prediction")]


def test_every_solver_that_is_served_is_looked_at_here() -> None:
    assert {param.values[0] for param in CONFIGURED} == set(SERVED)


@pytest.mark.parametrize(("name", "config"), CONFIGURED)
def test_a_preview_is_what_a_perfect_model_means(name: str, config: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(3)
    finished, noise = (torch.randn(2, 4, 4, 4, generator=draw) for _ in range(2))
    for step in range(STEPS):
        scheduler, one = solver(name, config)
        scheduler.set_begin_index(step) if hasattr(scheduler, "set_begin_index") else None
        latents = noised(scheduler, finished, noise, step)
        seen = one.clean(true_prediction(scheduler, finished, noise, step), latents, step)
        # float32 cancels where little of what is finished is left: alpha of the first step is 0.07
        assert torch.allclose(seen, finished, atol=2e-4), step


@pytest.mark.parametrize(("name", "config"), CONFIGURED)
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_fresh_solver_goes_on_bit_for_bit(name: str, config: dict[str, Any], at: int) -> None:  # SPEC F6
    draw = torch.Generator().manual_seed(4)
    start, weights = torch.randn(1, 4, 4, 4, generator=draw), torch.randn(4, 4, generator=draw)

    def advance(one: Solver, latents: torch.Tensor, steps: range) -> torch.Tensor:
        for step in steps:
            model = torch.einsum("bchw,cd->bdhw", one.scaled(latents, step), weights).tanh()
            latents = one.step(model, latents, step)
        return latents

    whole = advance(solver(name, config)[1], start.clone(), range(STEPS))
    first, second = solver(name, config)[1], solver(name, config)[1]
    half = advance(first, start.clone(), range(at))
    state = first.state()
    second.restore(state.plain, state.tensors)
    assert torch.equal(advance(second, half, range(at, STEPS)), whole)


@pytest.mark.parametrize("name", ["DDPMScheduler", "EulerAncestralDiscreteScheduler", "LCMScheduler", "PNDMScheduler"])
def test_another_solver_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"scheduler {name} is not known to resume exactly; served are DDIM"):
        check_scheduler(getattr(diffusers, name)())


def test_the_first_preview_is_the_same_whatever_a_solver_keeps(loaded: Any) -> None:
    """At the first step all see the same noise and the same prediction of it, and foresee one picture."""
    found, shown = loaded("pixart"), {}
    scheduler = found.pipeline.scheduler
    try:
        for kind, config in (("data", {}), ("noise", NOISE_SOLVER)):
            found.pipeline.scheduler = type(scheduler).from_config(scheduler.config, **config)
            engine = DiffusionEngine(found, RunSettings(), lambda: 0)
            shown[kind] = pixels(run(engine, [asked()], count=1, show=(0,)).made[0].made[0].body)
    finally:
        found.pipeline.scheduler = scheduler
    assert (shown["data"] == shown["noise"]).all()


@pytest.mark.parametrize(
    ("name", "config"), [each for each in CONFIGURED if str(each.id).startswith(("DDIM", "Euler", "FlowMatch"))]
)
def test_a_step_of_rows_side_by_side_has_the_bits_of_each_alone(name: str, config: dict[str, Any]) -> None:
    """SPEC F4: whoever shares a step ends where it would have ended alone, and can be saved and go on."""
    torch.manual_seed(0)
    latents = list(torch.randn(3, 1, 5, 7))
    together, apart = ([solver(name, config)[1] for _ in latents] for _ in range(2))
    assert all(each.is_like(together[0]) for each in together)
    alone, lead = list(latents), together[0]
    side_by_side = torch.cat(latents)
    for step in range(STEPS - 1):
        predictions = list(torch.randn(3, 1, 5, 7))
        lead.scaled(side_by_side, step)
        side_by_side = lead.step(torch.cat(predictions), side_by_side, step)
        for each in together[1:]:
            each.follow(lead)
        for each, row in zip(apart, alone, strict=True):
            each.scaled(row, step)
        alone = [each.step(*row, step) for each, row in zip(apart, zip(predictions, alone, strict=True), strict=True)]
        assert torch.equal(side_by_side, torch.cat(alone))
        assert [each.state() for each in together] == [each.state() for each in apart]


def test_solvers_that_remember_or_are_on_another_way_make_their_own_steps() -> None:
    _, unipc = solver("UniPCMultistepScheduler", FLOW)
    assert not solver("UniPCMultistepScheduler", FLOW)[1].is_like(unipc)
    _, euler = solver("FlowMatchEulerDiscreteScheduler", {"shift": 3.0})
    longer = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    longer.set_timesteps(STEPS + 1)
    assert not Solver(longer).is_like(euler)
    _, other = solver("FlowMatchEulerDiscreteScheduler", {"shift": 3.0})
    assert not Solver(other._scheduler, skipped=1).is_like(euler)
