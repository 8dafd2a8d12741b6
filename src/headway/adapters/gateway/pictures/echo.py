"""What the edge wants back with every view of a job: kept beside it, as JSON."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from headway.adapters.gateway.pictures.prepare import Asked, Parameters
from headway.adapters.gateway.pictures.schema import VideoBody

_NOT_TOLD: Final[Mapping[str, float]] = MappingProxyType({})


class ImageEcho(msgspec.Struct, frozen=True):
    """Of an image job."""

    size: str
    parameters: Parameters
    output_format: str
    by_url: bool
    stages: dict[str, float] = {}  # seconds believed when it was accepted; msgspec copies the default


class VideoEcho(msgspec.Struct, frozen=True):
    """Of a video. `body` is what a remix starts from, with the picture that the job keeps."""

    size: str
    seconds: int
    parameters: Parameters
    body: VideoBody
    has_reference: bool = False
    remixed_from: str | None = None
    stages: dict[str, float] = {}  # as of an image job


def image_echo(asked: Asked, by_url: bool, stages: Mapping[str, float] = _NOT_TOLD) -> bytes:
    """Write it."""
    echo = ImageEcho(asked.size, asked.parameters, asked.request.content.form, by_url, dict(stages))
    return msgspec.json.encode(echo)


def video_echo(asked: Asked, body: VideoBody, remixed_from: str | None, stages: Mapping[str, float]) -> bytes:
    """Write it."""
    seconds, pictures = asked.parameters["seconds"], asked.request.content.pictures
    assert isinstance(seconds, int)  # of every video
    # A remix keeps the seed, also one that was minted here.
    kept = msgspec.structs.replace(body, model=asked.card.id, seed=asked.request.seed, input_reference=None)
    echo = VideoEcho(asked.size, seconds, asked.parameters, kept, bool(pictures), remixed_from, dict(stages))
    return msgspec.json.encode(echo)
