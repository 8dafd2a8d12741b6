import struct
import zlib

from headway.engines.synthetic.pictures import CELLS, grid_png, png_movie


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and raw lines of an RGB PNG of one data chunk."""
    width, height = struct.unpack(">II", png[16:24])
    (length,) = struct.unpack(">I", png[33:37])
    assert png[37:41] == b"IDAT"
    assert struct.unpack(">I", png[41 + length : 45 + length])[0] == zlib.crc32(png[37 : 41 + length])
    return width, height, zlib.decompress(png[41 : 41 + length])


def test_a_picture_has_the_size_that_was_asked_also_where_the_grid_does_not_divide_it() -> None:
    width, height, lines = pixels(grid_png(30, 21, b"key"))
    assert (width, height) == (21, 30)
    assert len(lines) == 30 * (1 + 3 * 21)


def test_a_picture_is_decided_by_its_key() -> None:
    assert grid_png(16, 16, b"a") == grid_png(16, 16, b"a")
    assert grid_png(16, 16, b"a") != grid_png(16, 16, b"b")
    _, _, lines = pixels(grid_png(CELLS, CELLS, b"a"))
    assert len({lines[1 + 25 * y + 3 * x :][:3] for y in range(CELLS) for x in range(CELLS)}) > CELLS


def boxes(body: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    while body:
        (length,) = struct.unpack(">I", body[:4])
        found.append((body[4:8], body[8:length]))
        body = body[length:]
    return found


def test_a_movie_finds_every_frame_by_its_index() -> None:
    frames = [grid_png(16, 24, bytes([n])) for n in range(5)]
    movie = png_movie(frames, 16, 24, fps=4)
    assert [kind for kind, _ in boxes(movie)] == [b"ftyp", b"mdat", b"moov"]
    index = movie.index(b"stco")
    (at,) = struct.unpack(">I", movie[index + 12 : index + 16])
    assert movie[at : at + len(frames[0])] == frames[0]
    index = movie.index(b"stsz")
    assert struct.unpack(">5I", movie[index + 16 : index + 36]) == tuple(len(frame) for frame in frames)
