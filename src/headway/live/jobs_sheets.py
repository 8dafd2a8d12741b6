"""A thumbnail and a spritesheet of a video, for clients that look before they load it."""

import io
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "image/webp"
_COLUMNS: Final = 5
_FRAMES_MAX: Final = 20
_EDGE_MAX: Final = 320  # of one frame, pixels


class Sheets(msgspec.Struct, frozen=True):
    """Encoded as WebP."""

    thumbnail: bytes
    spritesheet: bytes


def sheets(video: bytes) -> Sheets | None:
    """Frames of an MP4, evenly spaced: the middle one, and up to 20 of them in rows of five. Blocks: for a thread.
    None where pillow or av are not installed."""
    if find_spec("av") is None or find_spec("PIL") is None:
        story = "a video has no thumbnail and no spritesheet: they need pillow and av"
        log.warning("%s (pip install -e '.[diffusion]' in the clone)", story)
        return None
    import av
    from PIL import Image

    with av.open(io.BytesIO(video), "r") as container:
        frames = [Image.fromarray(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    count = min(_FRAMES_MAX, len(frames))
    chosen = [frames[index * len(frames) // count] for index in range(count)]
    for image in chosen:
        image.thumbnail((_EDGE_MAX, _EDGE_MAX))
    width, height = chosen[0].size
    rows = -(-count // _COLUMNS)
    sheet = Image.new("RGB", (width * min(count, _COLUMNS), height * rows))
    for number, image in enumerate(chosen):
        sheet.paste(image, (width * (number % _COLUMNS), height * (number // _COLUMNS)))
    return Sheets(_webp(chosen[count // 2]), _webp(sheet))


def _webp(image: "Image.Image") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80)
    return buffer.getvalue()
