"""Thumbnail and spritesheet show frames of the video, in its order."""

import io

import pytest
from PIL import Image

from headway.engines.synthetic.pictures import grid_png, png_movie
from headway.live.jobs_sheets import sheets


def movie(frames: int) -> list[bytes]:
    return [grid_png(16, 24, bytes([frame] * 32)) for frame in range(frames)]


@pytest.mark.parametrize(("frames", "columns", "rows"), [(1, 1, 1), (4, 4, 1), (7, 5, 2), (20, 5, 4), (45, 5, 4)])
def test_a_sheet_holds_up_to_twenty_frames_in_rows_of_five(frames: int, columns: int, rows: int) -> None:
    made = sheets(png_movie(movie(frames), 16, 24, 4))
    assert made is not None
    assert Image.open(io.BytesIO(made.spritesheet)).size == (24 * columns, 16 * rows)
    assert Image.open(io.BytesIO(made.thumbnail)).size == (24, 16)


def test_the_thumbnail_is_the_middle_frame() -> None:
    pictures = movie(5)
    made = sheets(png_movie(pictures, 16, 24, 4))
    assert made is not None
    thumbnail = Image.open(io.BytesIO(made.thumbnail)).convert("RGB").resize((1, 1)).getpixel((0, 0))
    means = [Image.open(io.BytesIO(picture)).convert("RGB").resize((1, 1)).getpixel((0, 0)) for picture in pictures]
    assert isinstance(thumbnail, tuple)

    def apart(mean: object) -> int:
        assert isinstance(mean, tuple)
        return sum(abs(one - other) for one, other in zip(thumbnail, mean, strict=True))

    assert min(range(5), key=lambda frame: apart(means[frame])) == 2
