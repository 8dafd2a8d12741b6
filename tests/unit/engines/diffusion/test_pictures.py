"""Pictures of clients, and bytes for them."""

import io

import av
import numpy as np
import pytest
from PIL import Image
from tests.unit.engines.diffusion.asks import picture

from headway.core.errors import RequestError
from headway.engines.diffusion import pictures
from headway.engines.diffusion.pictures import open_mask, open_picture, picture_bytes, video_bytes


def test_a_picture_is_turned_as_it_is_meant_to_be_seen() -> None:
    image, out = Image.new("RGB", (40, 20)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    image.save(out, "JPEG", exif=exif)
    assert open_picture(out.getvalue()).size == (20, 40)


def test_a_picture_that_unfolds_too_far_is_refused_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "PIXELS_MAX", 1000)
    with pytest.raises(RequestError, match="at most 1000"):
        open_picture(picture(32))


def test_other_formats_are_refused() -> None:
    for form in ("BMP", "TIFF"):
        with pytest.raises(RequestError, match="no PNG, JPEG, WebP or GIF"):
            open_picture(picture(form=form))


def test_a_mask_is_white_where_it_is_transparent() -> None:
    alpha = np.full((4, 4, 4), 255, np.uint8)
    alpha[0, 0, 3] = 0
    out = io.BytesIO()
    Image.fromarray(alpha).save(out, "PNG")
    white = np.asarray(open_mask(out.getvalue(), (4, 4)))
    assert white[0, 0] == 255
    assert white.sum() == 255


def test_png_keeps_every_pixel_and_carries_nothing_else() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    body = picture_bytes(pixels, "png", 100)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(body))), pixels)
    assert body.count(b"IDAT") == 1
    assert not any(chunk in body for chunk in (b"tEXt", b"iTXt", b"eXIf", b"tIME"))


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_equal_frames_are_equal_bytes_that_play(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this build has no {codec}")
    monkeypatch.setattr(pictures, "CODECS", (codec,))
    frames = np.zeros((6, 32, 48, 3), np.uint8)
    frames[3:, :, :, 0] = 200
    body = video_bytes(frames, 4)
    assert video_bytes(frames, 4) == body
    with av.open(io.BytesIO(body)) as container:
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(shown) == 6
    assert np.abs(np.stack(shown).astype(int) - frames).mean() < 8
