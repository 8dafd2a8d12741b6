"""What the end of a request means for its job: whose fault it was decides whether it is tried again."""

import pytest

from headway.core.effects import End, ErrorOut
from headway.core.ids import RequestId
from headway.core.request import FinishReason
from headway.live.jobs_ends import ended, media_type


@pytest.mark.parametrize(
    ("reason", "error", "kind"),
    [
        (FinishReason.REJECTED, ErrorOut(400, "unservable", "too large"), "failed"),
        (FinishReason.LOST, ErrorOut(500, "out_of_memory", "720p"), "failed"),
        (FinishReason.LOST, ErrorOut(400, "bad_input", "no picture"), "failed"),
        (FinishReason.REJECTED, ErrorOut(429, "queue_full", "full", 2000), "refused"),
        (FinishReason.REJECTED, ErrorOut(503, "no_replica", "none"), "refused"),
        (FinishReason.REJECTED, ErrorOut(429, "slo_unattainable", "late", waiting_helps=False), "failed"),
        (FinishReason.REJECTED, ErrorOut(400, "bad_checkpoint", "other weights"), "unfit"),
        (FinishReason.DEADLINE, None, "failed"),
        (FinishReason.LOST, ErrorOut(502, "engine_lost", "gone"), "broken"),
        (FinishReason.LOST, None, "broken"),
        (FinishReason.CANCELLED, None, "interrupted"),
    ],
)
def test_who_is_to_blame_decides(reason: FinishReason, error: ErrorOut | None, kind: str) -> None:
    assert ended(End(RequestId("job-1"), reason, error)).kind == kind


def test_a_refusal_waits_as_long_as_it_was_told() -> None:
    end = End(RequestId("job-1"), FinishReason.REJECTED, ErrorOut(429, "queue_full", "full", 2000))
    assert ended(end).retry_after_ns == 2_000_000_000


def test_a_body_is_what_its_first_bytes_say_whatever_was_asked_for() -> None:
    bodies = (b"\x89PNG\r\n", b"\xff\xd8\xff\xe0", b"RIFF0000WEBP", b"\x00\x00\x00 ftyp", b"?")
    forms = ("webp", "png", "png", "mp4", "?")
    assert [media_type(body, form) for body, form in zip(bodies, forms, strict=True)] == [
        "image/png",
        "image/jpeg",
        "image/webp",
        "video/mp4",
        "application/octet-stream",
    ]
