"""How far pictures and videos are, in hundredths of the time that they are believed to take: each stage counts by its
share of it, so that the last denoise step of a video whose decode is long is not 96 percent."""

from collections.abc import Mapping
from typing import Final

from headway.adapters.gateway.job_ports import JobView

MADE: Final = 99  # all but what follows the last stage: storing, sending
_BEFORE: Final = ("text_encode", "vae_encode")


def percent(stages: Mapping[str, float], done: int, steps: int) -> int:
    """0 to 99. `stages`: believed seconds of each; empty: nobody told, and steps alone count."""
    if done >= steps:  # the plan of the last step decodes too
        return MADE
    whole = sum(stages.values())
    if whole <= 0:
        return MADE * done // steps
    before = sum(stages.get(name, 0.0) for name in _BEFORE) if done else 0.0
    return int(MADE * (before + stages.get("denoise", 0.0) * done / steps) / whole)


def with_steps(stages: Mapping[str, float], assumed: int, steps: int) -> Mapping[str, float]:
    """What stages take with so many steps, believed for `assumed` of them."""
    return stages if steps == assumed else {**stages, "denoise": stages.get("denoise", 0.0) * steps / assumed}


def progress_of(view: JobView, stages: Mapping[str, float]) -> int:
    """Of a job, 100 only when it is completed. `stages`: of what runs, maybe in fewer steps than were asked for."""
    if view.status == "completed" or not view.steps:
        return view.progress
    return percent(stages, view.done, steps_of(view))


def steps_of(view: JobView) -> int:
    """Denoise steps of what runs; 0: not told."""
    left = view.degraded.get("steps", view.steps)
    return left if isinstance(left, int) else view.steps
