"""Events of a session as they stand in its stream, and its view."""

from typing import Final

import msgspec

from headway.adapters.gateway.render import DONE

_encode: Final = msgspec.json.Encoder().encode


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The first event."""

    type: str = "video.session.created"
    id: str
    model: str
    fps: int
    size: str
    chunk_frames: int
    chunk_seconds: float
    predicted_chunk_seconds: float | None  # None: no replica has told what its work takes
    realtime: bool | None
    seed: int


class Cost(msgspec.Struct, frozen=True):
    """What one chunk cost."""

    usd: float
    stage_seconds: dict[str, float]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk: an MP4 that plays by itself (base64 on the wire)."""

    type: str = "video.session.chunk"
    id: str
    index: int
    first_frame: int
    frames: int
    seconds: float
    prompt: str
    seed: int
    b64_mp4: bytes
    gpu_seconds: float
    late_ms: float
    cost: Cost
    degraded: dict[str, int | str] | None = None
    warnings: tuple[str, ...] | None = None


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a session that no error ended."""

    type: str = "video.session.completed"
    id: str
    reason: str
    chunks: int
    frames: int
    late_chunks: int
    gpu_seconds: float
    usd: float


class View(msgspec.Struct, frozen=True, kw_only=True):
    """An open session as its client sees it."""

    id: str
    object: str = "video.session"
    model: str
    created_at: int  # Unix seconds
    fps: int
    size: str
    chunk_frames: int
    chunk_seconds: float
    seconds: float | None
    ahead: int
    seed: int
    prompt: str  # of the chunks to come, as the two below
    negative_prompt: str
    guidance_scale: float
    next_chunk: int  # the first that has not been begun
    chunks: int  # sent so far, as all below
    frames: int
    late_chunks: int
    gpu_seconds: float
    usd: float


def event(body: Created | Chunk | Completed) -> bytes:
    """Render an event."""
    return b"data: " + _encode(body) + b"\n\n"


def last_event(body: Completed) -> bytes:
    """Render it with the end of the stream."""
    return event(body) + DONE
