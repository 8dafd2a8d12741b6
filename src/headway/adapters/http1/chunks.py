"""Chunked bodies (RFC 9112, 7.1), cut strictly. Extensions and trailers are dropped: no two hops agree on them."""

import re
from functools import lru_cache
from typing import Final

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*+)?\r\n")
_DIGITS: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_SIZE_START: Final = re.compile(rb"[0-9A-Fa-f]{1,15}(?:;[\t\x20-\x7e\x80-\xff]*+)?\r?")
_TRAILER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):[\t\x20-\x7e\x80-\xff]*+\r\n")
SIZE_DIGITS_MAX: Final = 15
SIZE_LINE_MAX: Final = 256  # longer ones are an attack, not an extension
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"host"})
TRAILERS_MAX: Final = 16 * 1024
LAST_CHUNK: Final = b"0\r\n\r\n"


class BadChunk(Exception):
    """The bytes are no chunked body."""


def framed(payload: bytes) -> bytes:
    """Return one chunk; nothing for no payload, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""


class ChunkCutter:
    """Reads a chunked body piece by piece, and gives it on as whole chunks.

    A piece that consists of whole plain chunks is given on as it came, which is the steady state of an event stream.
    The part of a chunk that came is given on as a chunk of its own, so that what was given on can always be continued.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.chunks = 0  # of the sender, begun
        self.rest = b""  # after the end of the body
        self._left = 0  # bytes of the chunk that is open
        self._is_open = False
        self._held = b""  # an incomplete size line, chunk end or trailer
        self._in_trailer = False
        self._trailer_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """Return what came, framed. Raises BadChunk; what was returned before stays well-formed."""
        if self._held:
            piece, self._held = self._held + piece, b""
        if not self._is_open and not self._in_trailer:
            at, size, count = 0, len(piece), 0
            while (end := piece.find(b"\r\n", at, at + SIZE_DIGITS_MAX + 2)) > 0:
                length = _plain_size(piece[at:end])
                at = end + length + 4
                if not length or at > size or piece[at - 2 : at] != b"\r\n":
                    break
                count += 1
                if at == size:
                    self.chunks += count
                    return piece
        return self._step_by_step(piece)

    def _step_by_step(self, piece: bytes) -> bytes:
        out: list[bytes] = []
        at = 0
        while not self.is_done and at < len(piece):
            if self._in_trailer:
                step = self._trailer(piece, at)
            elif self._is_open:
                step = self._payload(piece, at, out)
            else:
                step = self._size(piece, at)
            if step == at:
                self._held = piece[at:]
                break
            at = step
        if self.is_done:
            self.rest = piece[at:]
        return b"".join(out)

    def _size(self, piece: bytes, at: int) -> int:
        match = _SIZE.match(piece, at)
        if match is None:
            if len(piece) - at > SIZE_LINE_MAX or b"\n" in piece[at:] or not _may_be_size(piece[at:]):
                raise BadChunk("malformed chunk size")
            return at
        if match.end() - at > SIZE_LINE_MAX:
            raise BadChunk("chunk size line too long")
        self._left = int(match[1], 16)
        self._is_open, self._in_trailer = self._left > 0, self._left == 0
        self.chunks += self._is_open
        return match.end()

    def _payload(self, piece: bytes, at: int, out: list[bytes]) -> int:
        if self._left:
            part = piece[at : at + self._left]
            out.append(framed(part))
            self._left -= len(part)
            return at + len(part)
        end = piece[at : at + 2]
        if end == b"\r\n":
            self._is_open = False
            return at + 2
        if end != b"\r":
            raise BadChunk("a chunk longer than its size")
        return at

    def _trailer(self, piece: bytes, at: int) -> int:
        if piece.startswith(b"\r\n", at):
            self.is_done = True
            return at + 2
        match = _TRAILER.match(piece, at)
        if match is None:
            if b"\n" in piece[at:] or len(piece) - at > TRAILERS_MAX:
                raise BadChunk("malformed trailer")
            return at
        if match[1].lower() in FRAMING:  # forbidden there (RFC 9110, 6.5.1), and somebody might heed it
            raise BadChunk("framing in a trailer")
        self._trailer_bytes += match.end() - at
        if self._trailer_bytes > TRAILERS_MAX:
            raise BadChunk("trailers too long")
        return match.end()


@lru_cache(4096)  # a stream's chunks have few lengths, and a look-up is cheaper than a match
def _plain_size(digits: bytes) -> int:
    """Return the size that a line says which has nothing else in it, else 0."""
    return int(digits, 16) if _DIGITS.fullmatch(digits) else 0


def _may_be_size(start: bytes) -> bool:
    return _SIZE_START.fullmatch(start) is not None


def payload_of(chunks: bytes) -> bytes:
    """Return the payload of whole chunks."""
    out: list[bytes] = []
    at = 0
    while at < len(chunks):
        end = chunks.index(b"\r\n", at)
        size = int(chunks[at:end], 16)
        out.append(chunks[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(out)
