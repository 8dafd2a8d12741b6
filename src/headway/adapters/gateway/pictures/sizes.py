"""How large, and how long: what a request names, against what its model makes."""

import re
from typing import Final

from headway.adapters.gateway.ports import PictureCard
from headway.adapters.gateway.sampling import invalid

_SIZE: Final = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")


def pixels_of(asked: str | None, looks: PictureCard, model: str) -> tuple[int, int]:
    """Return width and height. Raises RequestError for a size that the model does not make."""
    size = looks.size if asked is None or asked == "auto" else asked
    match = _SIZE.fullmatch(size)
    if match is None:
        raise invalid("size", f"`size` is {size[:32]!r}; write WIDTHxHEIGHT, e.g. {looks.size}, or auto.")
    width, height = int(match[1]), int(match[2])
    why = _refusal(size, width, height, looks)
    if why:
        raise invalid("size", f"`size` is {size}; `{model}` makes {why}.")
    return width, height


def _refusal(size: str, width: int, height: int, looks: PictureCard) -> str:
    if looks.sizes:
        return "" if size in looks.sizes else ", ".join(looks.sizes)
    if width % looks.multiple or height % looks.multiple:
        return f"sides that are multiples of {looks.multiple}"
    if min(width, height) < looks.side_min:
        return f"sides of at least {looks.side_min}"
    if width * height > looks.pixels_max:
        return f"at most {looks.pixels_max} pixels"
    return ""


def seconds_of(asked: int | str | None, looks: PictureCard, model: str) -> int:
    """Return the length of a video. Raises RequestError."""
    if asked is None:
        return looks.seconds[0]
    for seconds in looks.seconds:
        if str(asked) == str(seconds):
            return seconds
    lengths = ", ".join(str(one) for one in looks.seconds)
    raise invalid("seconds", f"`seconds` is {asked!r}; `{model}` makes {lengths}.")


def frames_of(seconds: int, looks: PictureCard) -> int:
    """Return the frames of so many seconds, rounded up to what whole latent frames hold."""
    return _whole(seconds * looks.fps, looks.frame_stride)


def first_chunk_frames(looks: PictureCard) -> int:
    """Return the frames of the first chunk of a streaming session, which goes on from none: `chunk_frames`, rounded up
    to what whole latent frames hold. A later one has `context_frames` + `chunk_frames`, the former of them given."""
    return _whole(looks.chunk_frames, looks.frame_stride)


def _whole(frames: int, stride: int) -> int:
    return frames if stride == 1 else -(-(frames - 1) // stride) * stride + 1
