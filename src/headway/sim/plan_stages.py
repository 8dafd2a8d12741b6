"""Which stages of a planned diffusion model should have processes and devices of their own (SPEC G1)."""

from collections.abc import Sequence

import msgspec

from headway.core.request import DenoiseShape
from headway.cost.diffusion_stages import Advice, advise
from headway.sim.catalogue import Catalogue
from headway.sim.plan_layouts import Layout
from headway.sim.plan_load import Load
from headway.sim.plan_params import PlanParams
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario


class StagePlan(msgspec.Struct, frozen=True):
    """Stage by stage, where it should run on one type of device, for the largest request of the load."""

    model: str
    device: str
    shape: DenoiseShape
    stages: tuple[Advice, ...]

    @property
    def words(self) -> str:
        """What it is about, for people."""
        frames = f", {self.shape.frames} frames" if self.shape.frames > 1 else ""
        return f"{self.model} on {self.device}, {self.shape.width}x{self.shape.height}{frames}"


def stage_plans(
    scenario: Scenario, plan: PlanParams, load: Load, pool: PoolParams, best: Layout | None
) -> list[StagePlan]:
    """Of the answer's device; without an answer, the reason of which may be a stage that needs too much, of each that
    was tried. Nothing for an LLM."""
    if pool.kind != "diffusion":
        return []
    catalogue = Catalogue(scenario.catalogue)
    model, shape = catalogue.denoiser(pool.model), largest(load)
    tried: Sequence[str] = plan.devices or (pool.hardware.device,)
    if best is not None:
        tried = list(dict.fromkeys(part.pool.hardware.device for part in best.parts))
    return [
        StagePlan(
            model.name,
            name,
            shape,
            advise(model, catalogue.device(name), pool.execution, shape, plan.models, pool.engine.memory_share),
        )
        for name in tried
    ]


def largest(load: Load) -> DenoiseShape:
    """Shape of the request whose decode peaks highest, which is also the one with the longest sequence."""
    return max((picture.shape for picture in load.pictures), key=lambda shape: (shape.pixels, shape.reference_tokens))
