"""What the first plan of a shape, or of a size of its batches, takes beyond its work: compiling, capturing,
and the first allocations (SPEC F8). A preemption for such a batch makes its rows wait for that too (SPEC F6)."""

from collections.abc import Sequence
from typing import Final

from headway.core.reports import DenoiseCoefficients, WarmShape
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.core.units import Ns
from headway.cost.diffusion import decode_ns, encode_ns, step_ns
from headway.cost.means import Mean

PREPARE_STEPS: Final = 2  # of a preparation: the first may compile, the decode comes with the second


def is_cold(warm: Sequence[WarmShape] | None, shape: DenoiseShape) -> bool:
    """True for a shape that has not run at a replica that tells what is `warm` there (None: nobody knows)."""
    sides = shape.height, shape.width, shape.frames
    return warm is not None and all((one.height, one.width, one.frames) != sides for one in warm)


def cold_refusal(warm: Sequence[WarmShape] | None, request: DiffusionRequest) -> str | None:
    """Why a request is refused where only what has run is taken; None: its shape has, or nobody knows."""
    if not is_cold(warm, request.shape):
        return None
    frames = f", {request.frames} frames" if request.frames > 1 else ""
    return (
        f"request {request.id} asks for {request.width}x{request.height}{frames}, which has not run there; warm are: "
        f"{', '.join(one.size_words for one in warm or ()) or 'none'}"
    )


def preparation_ns(cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int) -> Ns:
    """The work of running so many pictures of a shape before a request does, beside what the first run takes more."""
    steps_ns = PREPARE_STEPS * step_ns(cost, shape, pictures)
    return round(encode_ns(cost, shape) + steps_ns + decode_ns(cost, shape, pictures))


def cold_ns(cost: DenoiseCoefficients, warm: Sequence[WarmShape] | None, request: DiffusionRequest) -> Ns:
    """What a request waits there for its shape: its preparation, and what that takes more for being the first."""
    if not is_cold(warm, request.shape):
        return 0
    return round(cost.first_ns) + preparation_ns(cost, request.shape, request.n)


class FirstRuns:
    """One mean over all shapes: none of them has run when it is asked for. Deterministic: plain floats, no clock."""

    def __init__(self, memory: int) -> None:
        """After `memory` measures one weighs a third."""
        self._memory = memory
        self._more = Mean(0.0)

    @property
    def more_ns(self) -> Ns:
        """Beyond the work; 0: nothing measured yet, or nothing to pay."""
        return round(self._more.value)

    def begin(self, shapes: Sequence[WarmShape]) -> None:
        """Take what a warm-up has measured."""
        for shape in shapes:
            if shape.first_ns is not None:
                self._more.observe(shape.first_ns, self._memory)

    def observe(self, took_ns: Ns, predicted_ns: Ns) -> None:
        """A plan that nothing like it went before. Faster than predicted is no saving: the prediction was off."""
        self._more.observe(max(0, took_ns - predicted_ns), self._memory)
