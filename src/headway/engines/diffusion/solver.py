"""One request's own instance of a diffusers scheduler, and all that it remembers between steps.

Latents and a step index are the whole state of a one-step solver only. UniPC (Wan's default) and DPM++ 2M keep the last
model outputs and samples; a resume without them ends up to 0.02 away after four more steps (measured), with them it is
bitwise equal. So what is saved is whatever differs from a fresh instance, found by looking, not by a list of names.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import torch

from headway.core.errors import ConfigError, EngineError
from headway.engines.diffusion.families.protocol import Scheduler

Plain = int | float | bool | str | None
_CONFIG: Final = "_internal_dict"  # the scheduler's configuration, which the model brings
_STOCHASTIC: Final = ("sde-dpmsolver", "sde-dpmsolver++")
SERVED: Final = (
    "DDIMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "UniPCMultistepScheduler",
)

_STEP_ALONE: Final = ("DDIMScheduler", "EulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler")
_COUNTERS: Final = ("_step_index", "is_scale_input_called")  # all that those remember


class SolverState(msgspec.Struct, frozen=True):
    """What differs from a fresh instance: plain values by name, lists as `name.index`, tensors apart."""

    plain: dict[str, Plain]
    tensors: dict[str, torch.Tensor]


def check_scheduler(scheduler: Scheduler) -> None:
    """Raise ConfigError for what cannot be run step by step and resumed exactly."""
    name = type(scheduler).__name__
    if scheduler.order != 1:
        raise ConfigError(
            f"scheduler {name} evaluates the model {scheduler.order} times per step; use a first-order one"
        )
    config = scheduler.config
    if config.get("stochastic_sampling") or config.get("algorithm_type") in _STOCHASTIC:
        raise ConfigError(f"scheduler {name} draws noise at every step, so that no resume is exact; use its ODE form")
    if name not in SERVED:
        raise ConfigError(f"scheduler {name} is not known to resume exactly; served are {', '.join(SERVED)}")


class Solver:
    """A scheduler with its timesteps set. `skipped`: first steps that an edit leaves out."""

    def __init__(self, scheduler: Scheduler, skipped: int = 0) -> None:
        self._scheduler = scheduler
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(skipped)
        self.timesteps: torch.Tensor = scheduler.timesteps
        self._values: list[float] = [float(timestep) for timestep in scheduler.timesteps]
        self._fresh = _flat(scheduler)
        self._way = (len(self._values), skipped)
        self._remembers_steps = type(scheduler).__name__ not in _STEP_ALONE

    def value(self, step: int) -> float:
        """The timestep of a step, as a number."""
        return self._values[step]

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        """Latents to begin with."""
        sigma = getattr(self._scheduler, "init_noise_sigma", 1.0)
        return noise if sigma == 1.0 else noise * sigma

    def mixed(self, clean: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
        """Clean latents at the noise level of `step` (flow matching only)."""
        mixed: torch.Tensor = self._scheduler.scale_noise(clean, self.timesteps[step : step + 1], noise)
        return mixed

    def scaled(self, latents: torch.Tensor, step: int) -> torch.Tensor:
        """Latents as the model takes them."""
        if not hasattr(self._scheduler, "scale_model_input"):
            return latents
        scaled: torch.Tensor = self._scheduler.scale_model_input(latents, self.timesteps[step])
        return scaled

    def step(self, prediction: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        """Latents after `step`."""
        after: torch.Tensor = self._scheduler.step(prediction, self.timesteps[step], latents, return_dict=False)[0]
        return after

    def is_like(self, other: "Solver") -> bool:
        """Whether a step of both is one of tensors side by side, for the same model and size: the same timesteps, and
        nothing but their number remembered."""
        return not self._remembers_steps and self._way == other._way

    def follow(self, lead: "Solver") -> None:
        """Be where a solver like this one is that has made a step for both."""
        for name in _COUNTERS:
            if hasattr(lead._scheduler, name):
                setattr(self._scheduler, name, getattr(lead._scheduler, name))

    def clean(self, prediction: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        """What the finished latents look like from before `step`, whose prediction this is.

        What a solver remembers of its model is noise in some of them, so the prediction itself is read, as its type
        says: noise, finished latents, v = alpha noise - sigma finished (2202.00512, section 4), or a flow's velocity.
        """
        kind = self._scheduler.config.get("prediction_type", "flow_prediction")
        if kind == "flow_prediction":
            noise: torch.Tensor = self._scheduler.sigmas[step].to(latents.device, latents.dtype)
            return latents - noise * prediction
        alpha, sigma, scale = self._noise(step, latents)
        match kind:
            case "epsilon":
                return (scale * latents - sigma * prediction) / alpha
            case "v_prediction":
                return alpha * scale * latents - sigma * prediction
            case "sample":
                return prediction
        raise EngineError(f"{type(self._scheduler).__name__} has a prediction_type {kind!r}, which no preview reads")

    def _noise(self, step: int, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """alpha and sigma with scale * latents = alpha * finished + sigma * noise and alpha^2 + sigma^2 = 1."""
        scheduler = self._scheduler
        name = type(scheduler).__name__
        if name == "DDIMScheduler":
            kept: torch.Tensor = scheduler.alphas_cumprod[int(self._values[step])].to(latents.device, latents.dtype)
            return kept**0.5, (1 - kept) ** 0.5, torch.ones_like(kept)
        # Noise per unit of what is finished.
        sigma: torch.Tensor = scheduler.sigmas[step].to(latents.device, latents.dtype)
        alpha = 1 / (sigma**2 + 1) ** 0.5
        is_unscaled = name == "EulerDiscreteScheduler"  # its latents are finished + sigma * noise
        return alpha, sigma * alpha, alpha if is_unscaled else torch.ones_like(alpha)

    def state(self) -> SolverState:
        """All that a fresh instance does not have. Raises EngineError for what cannot be written down."""
        plain: dict[str, Plain] = {}
        tensors: dict[str, torch.Tensor] = {}
        for name, value in _flat(self._scheduler).items():
            if name in self._fresh and self._fresh[name] is value:
                continue
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            elif value is None or isinstance(value, int | float | str):
                plain[name] = value
            else:
                kind = type(self._scheduler).__name__
                raise EngineError(f"{kind}.{name} is a {type(value).__name__}, which a checkpoint cannot hold")
        return SolverState(plain, tensors)

    def restore(self, plain: Mapping[str, Plain], tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state of an instance with the same configuration, steps and size."""
        values: dict[str, Plain | torch.Tensor] = {**plain, **tensors}
        for path, value in values.items():
            name, _, index = path.partition(".")
            if index:
                getattr(self._scheduler, name)[int(index)] = value
            else:
                setattr(self._scheduler, name, value)


def _flat(scheduler: Scheduler) -> dict[str, object]:
    """Attributes of a scheduler, with the elements of lists by index: a list is changed in place."""
    flat: dict[str, object] = {}
    for name, value in vars(scheduler).items():
        if name == _CONFIG:
            continue
        if isinstance(value, list):
            flat.update({f"{name}.{n}": element for n, element in enumerate(value)})
        else:
            flat[name] = value
    return flat
