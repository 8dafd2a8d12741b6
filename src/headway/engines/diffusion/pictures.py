"""Pictures and videos as bytes, in and out. Equal pixels give equal bytes: no metadata, one thread, one setting."""

import io
from fractions import Fraction
from typing import Any, Final

import av
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from headway.core.artifacts import BAD_INPUT
from headway.core.errors import ConfigError, RequestError
from headway.engines.diffusion.families.protocol import Frames, Image

PIXELS_MAX: Final = 64_000_000  # of a picture that a client sends; a small file can unfold into gigabytes
CODECS: Final = ("libx264", "mpeg4")  # the first that this build of FFmpeg has


def open_picture(body: bytes) -> Image:
    """A client's picture as it is meant to be seen, RGB. Raises RequestError."""
    return _opened(body, "picture").convert("RGB")


def open_mask(body: bytes, size: tuple[int, int]) -> Image:
    """White where a mask is transparent, which is the part that is edited. Raises RequestError."""
    mask = _opened(body, "mask")
    if "A" not in mask.getbands() and "transparency" not in mask.info:
        raise RequestError(
            "the mask has no alpha channel: send a PNG whose transparent part is to be edited", code=BAD_INPUT
        )
    if mask.size != size:
        raise RequestError(
            f"the mask is {mask.size[0]}x{mask.size[1]}, the picture {size[0]}x{size[1]}; make them equal",
            code=BAD_INPUT,
        )
    return ImageOps.invert(mask.convert("RGBA").getchannel("A"))


def _opened(body: bytes, what: str) -> Image:
    try:
        image = Pillow.open(io.BytesIO(body), formats=("PNG", "JPEG", "WEBP", "GIF"))
        if image.width * image.height > PIXELS_MAX:
            raise RequestError(
                f"the {what} has {image.width}x{image.height} pixels, at most {PIXELS_MAX} are taken", code=BAD_INPUT
            )
        image.load()
    except UnidentifiedImageError as error:
        raise RequestError(
            f"the {what} is no PNG, JPEG, WebP or GIF: it begins with {body[:4]!r}", code=BAD_INPUT
        ) from error
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        raise RequestError(f"the {what} cannot be read: {error}", code=BAD_INPUT) from error
    return ImageOps.exif_transpose(image)


def picture_bytes(pixels: Frames, form: str, quality: int) -> bytes:
    """One picture, uint8 [height, width, 3], as PNG, JPEG or WebP. Raises RequestError for another form."""
    image, out = Pillow.fromarray(pixels), io.BytesIO()
    match form:
        case "png":
            image.save(out, "PNG", compress_level=6)
        case "jpeg" | "jpg":
            image.save(out, "JPEG", quality=max(1, quality), subsampling=0 if quality > 90 else 2)
        case "webp":
            image.save(out, "WEBP", quality=quality, method=4)
        case _:
            raise RequestError(f"pictures are made as png, jpeg or webp, not as {form!r}", code=BAD_INPUT)
    return out.getvalue()


def codec_name() -> str:
    """The best video codec that this build has. Raises ConfigError."""
    for name in CODECS:
        if name in av.codecs_available:
            return name
    raise ConfigError(f"the `av` package is built without {' and '.join(CODECS)}; install the one from PyPI")


def video_bytes(frames: Frames, fps: int) -> bytes:
    """Frames, uint8 [frames, height, width, 3], as an MP4 that browsers play where H.264 is there."""
    out = io.BytesIO()
    name = codec_name()
    with av.open(out, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream(name, rate=Fraction(fps))  # its type depends on the codec's name
        stream.height, stream.width = frames.shape[1], frames.shape[2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        if name == "libx264":
            stream.options = {"crf": "16", "preset": "veryfast"}
        else:
            stream.codec_context.bit_rate = 8 * frames.shape[1] * frames.shape[2] * fps
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return out.getvalue()
