import pytest
from tests.unit.adapters.gateway.pictures.fakes import data_url, picture

from headway.adapters.gateway.pictures.inputs import Declared, checked, declared, linked
from headway.adapters.gateway.pictures.schema import ImageLink
from headway.adapters.gateway.settings import LimitSettings
from headway.core.errors import RequestError


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_the_size_is_read_from_the_header(form: str) -> None:
    assert declared(picture(48, 32, form.upper())) == Declared(form, 48, 32)


def test_every_kind_of_webp_is_read() -> None:
    import io

    from PIL import Image

    for options, mode in (({"lossless": True}, "RGB"), ({"quality": 50}, "RGB"), ({"exif": b"Exif\0\0x"}, "RGB")):
        out = io.BytesIO()
        Image.new(mode, (37, 21)).save(out, "WEBP", **options)
        assert declared(out.getvalue()) == Declared("webp", 37, 21)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_header_that_is_cut_off_is_no_picture(form: str) -> None:
    whole = picture(48, 32, form)
    assert declared(whole[:15]) is None
    assert declared(b"GIF89a" + bytes(20)) is None


def test_a_bomb_is_refused_by_what_it_declares() -> None:
    # SPEC M5
    bomb = bytearray(picture())
    bomb[16:24] = (60_000).to_bytes(4) + (60_000).to_bytes(4)
    with pytest.raises(RequestError, match="60000x60000 pixels"):
        checked(bytes(bomb), "image", LimitSettings())


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_second_header_that_a_decoder_would_follow_is_refused(form: str) -> None:
    # SPEC M5: the first one is small, the picture is not
    small, large = picture(16, 16, form), picture(900, 700, form)
    if form == "PNG":
        forged = small[:33] + large[8:]
    else:
        at = next(at for at in range(len(small)) if small[at : at + 2] == b"\xff\xc0")
        frame = small[at : at + 2 + int.from_bytes(small[at + 2 : at + 4])]
        forged = large[:2] + frame + large[2:]
    with pytest.raises(RequestError, match="its header is broken"):
        checked(forged, "image", LimitSettings())
    assert declared(large) == Declared("png" if form == "PNG" else "jpeg", 900, 700)


def test_a_jpeg_without_pixels_is_none() -> None:
    whole = picture(48, 32, "JPEG")
    at = whole.index(b"\xff\xda")
    assert declared(whole[:at]) is None


@pytest.mark.parametrize("link", [ImageLink(), ImageLink(file_id="file-1"), ImageLink("data:image/png;base64,???")])
def test_links_without_a_picture_are_refused(link: ImageLink) -> None:
    with pytest.raises(RequestError) as caught:
        linked(link, "mask")
    assert (caught.value.param, caught.value.code) == ("mask", "invalid_image")


def test_a_data_url_is_its_picture() -> None:
    assert linked(ImageLink(data_url(b"abc")), "images[0]") == b"abc"
