"""Requests for diffusion tests."""

from msgspec.structs import replace

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams

MS = 1_000_000
# A step takes a microsecond per latent token of 16x16 pixels, and 16 us more however many there are.
COST = DenoiseCoefficients(16e3, 0.0, 1e3, 0.0)


def picture(name: str, steps: int = 3, size: int = 64, **more: object) -> DiffusionRequest:
    request = DiffusionRequest(RequestId(name), TenantId("default"), ModelId("m"), steps, size, size, 1, 0)
    return replace(request, **more)


def machine(**params: object) -> DiffusionMachine:
    """A machine with a belief."""
    return DiffusionMachine(replace(DiffusionParams(), **params), DenoiseCost(COST))


def begun(painter: DiffusionMachine) -> list[list[int]]:
    """Run to the end; return the batches in the order in which they began."""
    batches: list[list[int]] = []
    while (plan := painter.plan()) is not None:
        if plan.rows[0].start == 0:
            batches.append([row.seq for row in plan.rows])
        painter.done(plan.step)
        painter.check_invariants()
    return batches
