"""Chunked bodies are cut strictly, and what is given on can always be continued."""

import pytest

from headway.adapters.http1.chunks import LAST_CHUNK, BadChunk, ChunkCutter, framed, payload_of

EVENTS = [b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"]
WHOLE = b"".join(framed(event) for event in EVENTS)


def test_whole_chunks_are_given_on_as_they_came() -> None:
    cutter = ChunkCutter()
    assert cutter.feed(WHOLE) is WHOLE
    assert (cutter.chunks, cutter.is_done) == (3, False)


def test_every_split_gives_the_same_payload_in_whole_chunks() -> None:
    data = WHOLE + LAST_CHUNK + b"next"
    for at in range(1, len(data)):
        cutter = ChunkCutter()
        parts = [cutter.feed(data[:at])]
        if not cutter.is_done:
            parts.append(cutter.feed(data[at:]))
        assert b"".join(payload_of(part) for part in parts) == b"".join(EVENTS)
        assert cutter.is_done
        assert b"next".startswith(cutter.rest)


def test_what_was_given_on_of_a_cut_body_is_whole() -> None:
    cutter = ChunkCutter()
    part = cutter.feed(framed(b"data: one\n\n") + b"64\r\ndata: tw")
    assert payload_of(part) == b"data: one\n\ndata: tw"


def test_extensions_and_trailers_are_dropped() -> None:
    cutter = ChunkCutter()
    assert cutter.feed(b"3;a=b\r\nabc\r\n0\r\nx: y\r\n\r\n") == framed(b"abc")
    assert (cutter.is_done, cutter.rest) == (True, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"3\nabc\n",
        b"3\r\nabcd\r\n",
        b"-3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3 ;a=b\r\nabc\r\n",
        b"1_0\r\n",
        b"\r\n",
        b"f" * 16 + b"\r\n",
        b"3;" + b"a" * 300,
        b"0\r\nx y\r\n",
        b"0\r\nContent-Length: 3\r\n\r\n",
        b"0\r\n" + b"x: y\r\n" * 4000,
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadChunk):
        ChunkCutter().feed(data)
