import pytest

from headway.adapters.gateway.pictures.sizes import first_chunk_frames, frames_of, pixels_of, seconds_of
from headway.adapters.gateway.ports import PictureCard
from headway.core.errors import RequestError

OPEN = PictureCard(size="64x96", multiple=16, side_min=32, pixels_max=128 * 128)


@pytest.mark.parametrize(
    ("asked", "found"), [(None, (64, 96)), ("auto", (64, 96)), ("32x512", (32, 512)), ("128x128", (128, 128))]
)
def test_sizes_within_the_limits_are_made(asked: str | None, found: tuple[int, int]) -> None:
    assert pixels_of(asked, OPEN, "m") == found


@pytest.mark.parametrize("asked", ["0x64", "64", "64X64", "64x64x64", " 64x64", "-64x64", "64x40", "16x64", "144x128"])
def test_others_are_refused(asked: str) -> None:
    with pytest.raises(RequestError) as caught:
        pixels_of(asked, OPEN, "m")
    assert caught.value.param == "size"


def test_a_list_of_sizes_is_all_that_is_made() -> None:
    looks = PictureCard(size="64x64", sizes=("64x64", "96x64"))
    assert pixels_of("96x64", looks, "m") == (96, 64)
    with pytest.raises(RequestError, match="64x64, 96x64"):
        pixels_of("64x96", looks, "m")


def test_frames_fill_whole_latent_frames() -> None:
    assert frames_of(4, PictureCard(size="64x64", fps=4)) == 16
    assert frames_of(4, PictureCard(size="64x64", fps=4, frame_stride=4)) == 17
    assert frames_of(5, PictureCard(size="64x64", fps=16, frame_stride=4)) == 81


def test_the_first_chunk_of_a_session_fills_whole_latent_frames_too() -> None:  # SPEC H5
    assert first_chunk_frames(PictureCard(size="64x64", fps=2, context_frames=4, chunk_frames=4)) == 4
    assert first_chunk_frames(PictureCard(size="64x64", fps=16, frame_stride=4, chunk_frames=80)) == 81


def test_seconds_may_be_a_text() -> None:
    looks = PictureCard(size="64x64", fps=4, seconds=(4, 8))
    assert [seconds_of(asked, looks, "m") for asked in (None, "8", 4)] == [4, 8, 4]
