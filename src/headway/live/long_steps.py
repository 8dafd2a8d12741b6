"""Denoise steps that an orderly end has no time for: a job is saved at a step boundary, or not within the grace.

Told when the server is ready, and kept for `headway doctor`.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.core.reports import DenoiseCoefficients
from headway.core.units import NS_PER_S
from headway.cost.diffusion import step_ns
from headway.live.board import Board
from headway.live.config_diffusion import DiffusionSettings, probes_of
from headway.live.jobs_settings import LONG_STEPS

PLANS: Final = 2  # the one that is under way when a job is to be saved, and the one after which it is saved
_REPORT_S: Final = 5.0  # for what a replica tells once it is ready
_LOOK_S: Final = 0.05


def too_long(model: DiffusionSettings, cost: DenoiseCoefficients, shutdown_s: float) -> str | None:
    """The story of the longest plan among the shapes that the configuration names, where two do not fit."""
    at_once, plans = model.scheduler.steps_per_plan, []
    for shape, most in probes_of(model).batches:
        alone, together = step_ns(cost, shape), step_ns(cost, shape, most)
        forms = most * alone >= model.scheduler.gain_min * together  # else its requests run one by one
        plans.append((together if forms else alone, shape, most if forms else 1))
    took_ns, shape, pictures = max(plans, key=lambda plan: plan[0])
    took = took_ns / NS_PER_S
    needed_s = PLANS * at_once * took
    if needed_s <= shutdown_s:
        return None
    frames = f", {shape.frames} frames" if shape.frames > 1 else ""
    many = f", a batch of {pictures}," if pictures > 1 else ""
    steps = "a denoise step" if at_once == 1 else f"a denoise step, {at_once} of which are one plan,"
    size = f"{shape.width}x{shape.height}{frames}{many}"
    return (
        f"{steps} of {model.name} at {size} takes {took:.3g} s: to save a job on SIGTERM "
        f"takes up to {needed_s:.3g} s, and server.shutdown_s = {shutdown_s:g}. Raise it, or such a job does "
        "what is under way then once more"
    )


async def stories(models: Sequence[DiffusionSettings], board: Board, shutdown_s: float) -> list[str]:
    """Of every model, once one of its replicas has told what its work takes."""
    found = []
    for model in models:
        cost = await _cost(model.name, board)
        if cost is not None and (story := too_long(model, cost, shutdown_s)) is not None:
            found.append(story)
    return found


async def _cost(model: str, board: Board) -> DenoiseCoefficients | None:
    for _ in range(round(_REPORT_S / _LOOK_S)):
        for node in board.serving(model):
            report = board.replicas[node].report
            if report is not None and report.denoise_cost is not None:
                return report.denoise_cost
        await asyncio.sleep(_LOOK_S)
    return None


async def tell_long_steps(
    models: Sequence[DiffusionSettings], board: Board, shutdown_s: float, folder: Path, tell: Callable[[str], None]
) -> None:
    """Say so, and leave it in `folder` for `headway doctor`."""
    found = await stories(models, board, shutdown_s)
    for story in found:
        tell(story)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LONG_STEPS).write_bytes(msgspec.json.encode(found))
    except OSError as error:
        tell(f"`headway doctor` will not know which steps are long: {error}")
