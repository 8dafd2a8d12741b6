"""What the end of a job's request means for the job, and what its outputs are."""

from typing import Final

from headway.core.artifacts import BAD_CHECKPOINT, BAD_INPUT
from headway.core.effects import End, ErrorOut
from headway.core.jobs import Outcome
from headway.core.request import FinishReason
from headway.core.units import NS_PER_MS

MEDIA_TYPES: Final = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "mp4": "video/mp4",
}
_OWN_FAULTS: Final = frozenset({BAD_INPUT, "out_of_memory", "unservable", "deadline_passed"})


def media_type(body: bytes, form: str) -> str:
    """What a body is: by its first bytes where they say so, else as it was asked for."""
    if body.startswith(b"\x89PNG"):
        return MEDIA_TYPES["png"]
    if body.startswith(b"\xff\xd8\xff"):
        return MEDIA_TYPES["jpeg"]
    return MEDIA_TYPES["webp"] if body[8:12] == b"WEBP" else MEDIA_TYPES.get(form, "application/octet-stream")


def ended(end: End) -> Outcome:
    """What an end without a result means for the job."""
    error = end.error or _silent(end)
    code = error.code or "error"
    device_ns = 0 if end.marks is None else end.marks.device_ns
    if end.reason is FinishReason.CANCELLED:
        return Outcome("interrupted", code, error.message)
    if code == BAD_CHECKPOINT:
        return Outcome("unfit", code, error.message)
    if code in _OWN_FAULTS or (400 <= error.status < 500 and error.status not in (408, 429)):
        return Outcome("failed", code, error.message, device_ns=device_ns)
    if error.status in (408, 429, 503):
        if not error.waiting_helps or end.reason is FinishReason.DEADLINE:
            return Outcome("failed", code, error.message, device_ns=device_ns)
        return Outcome("refused", code, error.message, (error.retry_after_ms or 0) * NS_PER_MS)
    return Outcome("broken", code, error.message, device_ns=device_ns)


def _silent(end: End) -> ErrorOut:
    status = 408 if end.reason is FinishReason.DEADLINE else 500
    return ErrorOut(status, str(end.reason.value), f"it ended as {end.reason.value}")
