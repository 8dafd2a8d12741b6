"""Whether a diffusion replica can do what a request asks for (SPEC F1): else its engine would refuse what the router, a
degraded or moved request, or a job's next attempt sends there."""

from headway.core.reports import DenoiseAbilities
from headway.core.request import DiffusionRequest


def unable(has: DenoiseAbilities | None, request: DiffusionRequest) -> str | None:
    """What of the request is beyond such a replica, in words; None: nothing, or nobody has told."""
    if has is None:
        return None
    said = request.content
    is_video = request.frames > 1 or said.form == "mp4"
    is_guided = request.guidance_scale > 1 if request.guidance_scale else has.is_guided
    for wrong, words in (
        (is_video and not has.makes_videos, "makes no videos"),
        (has.makes_videos and not is_video, "makes videos only"),
        (bool(said.pictures) and not has.edits, "takes no pictures to start from"),
        (said.mask is not None and not has.masks, "takes no masks"),
        (request.image_prompts > 0 and not has.image_prompts, "takes no image prompts"),
        (request.is_chunk and not has.chunks, "makes whole videos, no chunks of a session"),
        (bool(said.negative_prompt) and not has.negative_prompts, "takes no negative prompt"),
        (bool(said.negative_prompt) and not is_guided, "reads a negative prompt with guidance_scale above 1 only"),
    ):
        if wrong:
            return words
    return _size(has, request)


def _size(has: DenoiseAbilities, request: DiffusionRequest) -> str | None:
    height, width, frames = request.height, request.width, request.frames
    if has.sizes:
        return None if (height, width) in has.sizes else f"does not make {width}x{height}"
    if height % has.multiple or width % has.multiple or min(height, width) < has.side_min:
        return f"makes sides that are multiples of {has.multiple} from {has.side_min} on, not {width}x{height}"
    if height * width > has.pixels_max:
        return f"makes at most {has.pixels_max} pixels, not {width}x{height}"
    if not request.is_chunk and (frames - 1) % has.frame_stride:
        return f"makes 1 + k * {has.frame_stride} frames, not {frames}"
    return None
