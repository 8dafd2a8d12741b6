"""What the edge wants back with every view of a job: kept beside it, as JSON."""

import msgspec

from headway.adapters.gateway.pictures.prepare import Asked, Parameters
from headway.adapters.gateway.pictures.schema import VideoBody


class ImageEcho(msgspec.Struct, frozen=True):
    """Of an image job."""

    size: str
    parameters: Parameters
    output_format: str
    by_url: bool


class VideoEcho(msgspec.Struct, frozen=True):
    """Of a video. `body` is what a remix starts from, with the picture that the job keeps."""

    size: str
    seconds: int
    parameters: Parameters
    body: VideoBody
    has_reference: bool = False
    remixed_from: str | None = None


def image_echo(asked: Asked, by_url: bool) -> bytes:
    """Write it."""
    return msgspec.json.encode(ImageEcho(asked.size, asked.parameters, asked.request.content.form, by_url))


def video_echo(asked: Asked, body: VideoBody, remixed_from: str | None) -> bytes:
    """Write it."""
    seconds, pictures = asked.parameters["seconds"], asked.request.content.pictures
    assert isinstance(seconds, int)  # of every video
    # A remix keeps the seed, also one that was minted here.
    kept = msgspec.structs.replace(body, model=asked.card.id, seed=asked.request.seed, input_reference=None)
    return msgspec.json.encode(VideoEcho(asked.size, seconds, asked.parameters, kept, bool(pictures), remixed_from))
