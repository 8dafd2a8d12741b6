"""What the stages of a job are believed to take: of what was asked for when it was accepted, and of what runs where
admission took something away since."""

from collections.abc import Mapping

import msgspec

from headway.adapters.gateway.job_ports import JobView
from headway.adapters.gateway.pictures.progress import steps_of, with_steps
from headway.adapters.gateway.ports import PictureEstimate, Serving
from headway.core.errors import CapacityError, RequestError
from headway.core.ids import RequestId
from headway.core.request import Content, DiffusionRequest


class _Parameters(msgspec.Struct, frozen=True):
    """Of an echo, those that decide what its stages take."""

    num_inference_steps: int
    size: str
    n: int = 1
    frames: int = 1
    guidance_scale: float = 0.0
    strength: float | None = None


class _Echo(msgspec.Struct, frozen=True):
    """The part of either kind's echo that is needed here."""

    parameters: _Parameters
    stages: dict[str, float] = {}  # msgspec copies the default


class Believed:
    """Asks what runs now would take; it changes nothing."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def foreseen(self, request: DiffusionRequest) -> PictureEstimate | None:
        """What it is believed to take. A job waits in its table for a replica that is on its way back."""
        try:
            return self._serving.foresee(request)
        except CapacityError:
            return None

    def stages_asked(self, request: DiffusionRequest, found: PictureEstimate) -> Mapping[str, float]:
        """Of all that is asked for: an estimate is of what admission would leave of it now."""
        if not found.degraded:
            return found.stages
        whole = self.foreseen(msgspec.structs.replace(request, allow_degrade=()))
        return found.stages if whole is None else whole.stages

    def stages_of(self, view: JobView, passes: int) -> Mapping[str, float]:
        """Of what runs. `passes`: of a guided step of the model that runs."""
        echo = msgspec.json.decode(view.echo, type=_Echo)
        if not view.degraded or not echo.stages:
            return echo.stages
        found = None
        if "model" in view.degraded:
            found = self._of_another(view, echo.parameters, passes)
        if found is not None:
            return found
        return with_steps(echo.stages, echo.parameters.num_inference_steps, steps_of(view))

    def _of_another(self, view: JobView, said: _Parameters, passes: int) -> Mapping[str, float] | None:
        """Of such a request to the model that runs it; None where it does not tell."""
        width, height = (int(side) for side in said.size.split("x"))
        pictures = () if said.strength is None else (b"",)
        request = DiffusionRequest(
            id=RequestId(view.id),
            tenant=view.tenant,
            model=view.ran,
            steps=steps_of(view),
            height=height,
            width=width,
            seed=0,
            arrived_ns=0,
            frames=said.frames,
            n=said.n,
            passes=passes,
            strength=1.0 if said.strength is None else said.strength,
            content=Content(pictures=pictures),
        )
        try:
            found = self.foreseen(request)
        except RequestError:  # it takes no such request any more
            return None
        return None if found is None else found.stages
