"""What a diffusion replica never takes, whoever waits: sizes of other pools, and what was never asked for properly."""

from headway.core.errors import RequestError
from headway.core.request import DiffusionRequest

Pixels = tuple[int, int | None]


def check_request(request: DiffusionRequest, pixels: Pixels) -> None:
    """Raise RequestError for what is outside of `pixels` (fewest and most of a request), or has no step to do."""
    wanted, (least, most) = request.shape.pixels, pixels
    if wanted < least or (most is not None and wanted > most) or request.steps < 1 or request.n < 1:
        frames = f" and {request.frames} frames" if request.frames > 1 else ""
        raise RequestError(
            f"request {request.id} wants {request.steps} steps at {request.height}x{request.width}{frames}, "
            f"{request.n} times; served are at least 1 step, 1 picture and {least} pixels and at most "
            f"{'any number of' if most is None else most} pixels",
            code="unservable",
        )
    if not 0 <= request.begun < request.steps:
        raise RequestError(
            f"request {request.id} has begun {request.begun} of {request.steps} steps; the last one ends with its "
            f"pictures, so that begun is at most {request.steps - 1}",
            code="unservable",
        )
