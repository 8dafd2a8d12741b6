"""What a chunk of a streaming session must say (SPEC H5)."""

import pytest
from tests.unit.sched.diffusion.pictures import picture

from headway.core.request import Content

LATENTS = Content("x", given=b"latents")


def test_a_chunk_goes_on_from_fewer_frames_than_it_has() -> None:
    for chunk in (
        picture("req-1", frames=4, hand_on=4),
        picture("req-1", frames=8, given_frames=4, hand_on=4, content=LATENTS),
        picture("req-1"),
    ):
        assert chunk.chunk_fault is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"frames": 4, "given_frames": 4, "content": LATENTS}, "given_frames is 4 of 4 frames"),
        ({"frames": 4, "given_frames": -1, "content": LATENTS}, "given_frames is -1 of 4 frames"),
        ({"frames": 8, "given_frames": 4}, "given_frames is 4 and 0 bytes of latents came"),
        ({"frames": 8, "content": LATENTS}, "given_frames is 0 and 7 bytes of latents came"),
        ({"frames": 8, "hand_on": 9}, "hand_on is 9 of 8 frames"),
        ({"frames": 8, "hand_on": -1}, "hand_on is -1 of 8 frames"),
        (
            {"frames": 8, "given_frames": 4, "content": Content("x", pictures=(b"p",), given=b"g")},
            "4 frames are given and a picture too",
        ),
    ],
    ids=str,
)
def test_what_no_chunk_can_be_is_said(fields: dict[str, object], words: str) -> None:
    fault = picture("req-1", **fields).chunk_fault
    assert fault is not None
    assert fault.startswith(words)


def test_latents_are_among_what_a_request_brings() -> None:
    assert Content("x", pictures=(b"abc",), mask=b"de", given=b"f").brought_bytes == 6
