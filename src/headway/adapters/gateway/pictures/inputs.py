"""Pictures that clients send: which form, how large by their header. Nothing is decoded before its size is known."""

import base64
import binascii
import re
from typing import Final, Literal

import msgspec

from headway.adapters.gateway.pictures.schema import ImageLink
from headway.adapters.gateway.settings import LimitSettings
from headway.core.errors import RequestError

PictureForm = Literal["png", "jpeg", "webp"]

_DATA_URL: Final = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)
_PNG: Final = b"\x89PNG\r\n\x1a\n"
# Start of frame: all but 0xC4 (tables), 0xC8 (reserved) and 0xCC (arithmetic tables); ITU T.81, table B.1.
_SOF: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SOS: Final = 0xDA  # start of scan: pixels follow
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length


class Declared(msgspec.Struct, frozen=True):
    """What the header of a picture says."""

    form: PictureForm
    width: int
    height: int


def checked(body: bytes, param: str, limits: LimitSettings) -> Declared:
    """Return what a picture declares. Raises RequestError for one that is none, or larger than is decoded."""
    found = declared(body)
    if found is None:
        raise wrong(param, "it is no PNG, JPEG or WebP, or its header is broken")
    if found.width * found.height > limits.picture_pixels:
        size = f"{found.width}x{found.height}"
        raise wrong(param, f"it has {size} pixels, the limit is {limits.picture_pixels} in all; send a smaller one")
    return found


def linked(link: ImageLink | str, param: str) -> bytes:
    """Return the picture of a `data:` URL. Raises RequestError for any other link."""
    if isinstance(link, str):
        link = ImageLink(link)
    if link.image_url is None:
        raise wrong(param, "files are not kept here; send the picture as a file, or as a `data:` URL in `image_url`")
    match = _DATA_URL.match(link.image_url)
    if match is None:
        raise wrong(param, "URLs are not fetched; send the picture as a file, or as `data:image/png;base64,...`")
    try:
        return base64.b64decode(link.image_url[match.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise wrong(param, "its base64 is broken") from None


def declared(body: bytes) -> Declared | None:
    """Return what the header says; None for what is no picture of a form that is read."""
    if body[:8] == _PNG:
        return _png(body)
    if body[:3] == b"\xff\xd8\xff":
        return _jpeg(body)
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return _webp(body)
    return None


def _sized(form: PictureForm, width: bytes, height: bytes) -> Declared | None:
    found = Declared(form, int.from_bytes(width), int.from_bytes(height))
    return found if found.width and found.height else None


def _png(body: bytes) -> Declared | None:
    """The one IHDR counts (PNG, 5.6): decoders that meet a second one before the pixels would follow that."""
    if body[8:16] != b"\0\0\0\rIHDR" or len(body) < 24:
        return None
    at = 33  # behind it
    while at + 8 <= len(body) and (kind := body[at + 4 : at + 8]) != b"IDAT":
        if kind == b"IHDR":
            return None
        at += 12 + int.from_bytes(body[at : at + 4])
    return _sized("png", body[16:20], body[20:24])


def _jpeg(body: bytes) -> Declared | None:
    """The one start of frame counts: decoders that meet a second one before the pixels would follow that."""
    at = 2
    found: Declared | None = None
    while at + 4 <= len(body) and body[at] == 0xFF:
        marker = body[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker == _SOS:
            return found
        else:
            if marker in _SOF:
                if found is not None or at + 9 > len(body):
                    return None
                found = _sized("jpeg", body[at + 7 : at + 9], body[at + 5 : at + 7])
                if found is None:
                    return None
            at += 2 + int.from_bytes(body[at + 2 : at + 4])
    return None


def _webp(body: bytes) -> Declared | None:
    """RFC 9649, 2.5 to 2.7."""
    if len(body) < 30:
        return None

    def little(start: int, end: int) -> int:
        return int.from_bytes(body[start:end], "little")

    kind = body[12:16]
    if kind == b"VP8X":
        return Declared("webp", little(24, 27) + 1, little(27, 30) + 1)
    if kind == b"VP8L" and body[20] == 0x2F:
        bits = little(21, 25)
        return Declared("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and body[23:26] == b"\x9d\x01\x2a":
        width, height = little(26, 28) & 0x3FFF, little(28, 30) & 0x3FFF
        return Declared("webp", width, height) if width and height else None
    return None


def wrong(param: str, why: str) -> RequestError:
    """What is answered for a picture that cannot be taken."""
    return RequestError(f"`{param}` cannot be used: {why}.", code="invalid_image", param=param)
