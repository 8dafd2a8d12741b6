"""Pictures and videos without an imaging library: coarse grids of colour as PNG (zlib), and PNG frames in an MP4.

The MP4 holds one video track whose samples are PNG images (object type 0x6D of the MP4 registration authority), which
FFmpeg and what is built on it play; browsers do not.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Final

CELLS: Final = 8  # colours along each edge
_TIMESCALE: Final = 1000  # ticks per second of a movie header
_PNG_OBJECT_TYPE: Final = 0x6D
_IDENTITY: Final = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


def grid_png(height: int, width: int, key: bytes) -> bytes:
    """A grid of colours that only `key` decides, as an RGB PNG."""
    colours = hashlib.shake_256(key).digest(CELLS * CELLS * 3)
    rows = []
    for y in range(CELLS):
        cells = range(y * CELLS, (y + 1) * CELLS)
        line = b"".join(
            colours[3 * c : 3 * c + 3] * (_edge(c % CELLS + 1, width) - _edge(c % CELLS, width)) for c in cells
        )
        rows.append((b"\x00" + line) * (_edge(y + 1, height) - _edge(y, height)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _edge(cell: int, length: int) -> int:
    return cell * length // CELLS


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_movie(frames: Sequence[bytes], height: int, width: int, fps: int) -> bytes:
    """An MP4 of PNG frames. `fps` >= 1."""
    kind = _box(b"ftyp", b"isom", struct.pack(">I", 512), b"isommp41")
    offset = len(kind) + 8  # of the first frame: the payload of `mdat` comes before the index
    media = _box(b"mdat", *frames)
    return kind + media + _index(frames, offset, (height, width), fps)


def _index(frames: Sequence[bytes], offset: int, size: tuple[int, int], fps: int) -> bytes:
    count, (height, width) = len(frames), size
    duration = count * _TIMESCALE // fps
    movie = struct.pack(">IIIIIH10x", 0, 0, _TIMESCALE, duration, 0x10000, 0x100) + _IDENTITY + bytes(24) + _u32(2)
    track = struct.pack(">IIIII16x", 0, 0, 1, 0, duration) + _IDENTITY
    track += struct.pack(">II", width << 16, height << 16)
    header = struct.pack(">IIIIHH", 0, 0, fps, count, 0x55C4, 0)  # one tick of the track per frame
    kind = struct.pack(">I4s12x", 0, b"vide") + b"frames\x00"
    links = _box(b"dinf", _full(b"dref", _u32(1) + _full(b"url ", b"", flags=1)))
    samples = _box(
        b"stbl",
        _full(b"stsd", _u32(1) + _entry(height, width)),
        _full(b"stts", struct.pack(">III", 1, count, 1)),
        _full(b"stsc", struct.pack(">IIII", 1, 1, count, 1)),
        _full(b"stsz", struct.pack(">II", 0, count) + b"".join(_u32(len(frame)) for frame in frames)),
        _full(b"stco", struct.pack(">II", 1, offset)),
    )
    content = _box(b"minf", _full(b"vmhd", bytes(8), flags=1), links, samples)
    inside = _box(b"mdia", _full(b"mdhd", header), _full(b"hdlr", kind), content)
    return _box(b"moov", _full(b"mvhd", movie), _box(b"trak", _full(b"tkhd", track, flags=3), inside))


def _entry(height: int, width: int) -> bytes:
    """The description of the samples: visual, PNG."""
    visual = struct.pack(">6xH16xHHII4xH32xHh", 1, width, height, 0x480000, 0x480000, 1, 24, -1)
    config = bytes((0x04, 13, _PNG_OBJECT_TYPE, 0x11)) + bytes(11)  # visual stream, no buffer size, no bit rates
    stream = bytes((0x03, 3 + len(config) + 3, 0, 1, 0)) + config + bytes((0x06, 1, 2))
    return _box(b"mp4v", visual, _full(b"esds", stream))


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full(kind: bytes, body: bytes, flags: int = 0) -> bytes:
    return _box(kind, _u32(flags), body)


def _u32(value: int) -> bytes:
    return struct.pack(">I", value)
