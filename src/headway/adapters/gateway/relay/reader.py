"""Bytes of a client to whole requests, strictly (adapters/http1), within the limits of the configuration."""

import re
from typing import Final

import msgspec

from headway.adapters.gateway.relay.prepare import OPERATIONS
from headway.adapters.gateway.settings import LimitSettings
from headway.adapters.http1.chunks import ChunkCutter, payload_of
from headway.adapters.http1.heads import HEAD_END, RequestHead, read_request

_STARTS: Final = tuple(f"POST {route}{end}".encode() for route in OPERATIONS for end in (" HTTP/1.", "?"))
_START_MAX: Final = max(len(start) for start in _STARTS)
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*+")
_NOT_REPEATED: Final = frozenset({"content-length", "transfer-encoding", "expect"})


class HeadTooLarge(Exception):
    """The head exceeds `limits.header_bytes`."""


class BodyTooLarge(Exception):
    """The body exceeds `limits.body_bytes`."""


class Whole(msgspec.Struct, frozen=True, gc=False):
    """One request with its body, decoded."""

    head: RequestHead
    body: bytes

    @property
    def route(self) -> str:
        """The path that was asked for, without its query."""
        return self.head.target.partition("?")[0]

    def rewritten(self) -> bytes:
        """As one plain request, for another parser: what was read here cannot be read differently there."""
        head = self.head
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.fields if name not in _NOT_REPEATED)
        start = f"{head.method} {head.target} HTTP/1.{head.minor}\r\n{lines}content-length: {len(self.body)}\r\n\r\n"
        return start.encode("latin-1") + self.body


class RequestReader:
    """Holds what came and is not taken yet."""

    def __init__(self, limits: LimitSettings) -> None:
        self.head: RequestHead | None = None  # of the request whose body is awaited
        self.is_foreign = False  # what is held begins with a request that is not ours to read
        self._limits = limits
        self._held = b""
        self._parts: list[bytes] = []  # of the body
        self._parts_bytes = 0
        self._cutter: ChunkCutter | None = None

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return len(self._held) + self._parts_bytes

    def add(self, data: bytes) -> None:
        """More came."""
        if self.head is not None and self._cutter is None and not self._held:
            self._parts.append(data)  # a long body: joined once
            self._parts_bytes += len(data)
        else:
            self._held = self._held + data if self._held else data

    def next(self) -> Whole | None:
        """Return the next request when it is complete. Raises BadHead, BadChunk, HeadTooLarge, BodyTooLarge."""
        head = self.head
        if head is None:
            head = self._read_head()
            if head is None:
                return None
        return self._read_chunks(head) if head.is_chunked else self._read_length(head)

    def take_all(self) -> bytes:
        """Return everything that waits; what comes next begins anew."""
        held, self._held, self.is_foreign = self._held, b"", False
        return held

    def _read_head(self) -> RequestHead | None:
        held = self._held
        empty = _EMPTY_LINES.match(held)  # behind a body they are harmless (RFC 9112, 2.2)
        if empty is not None and empty.end():
            held = self._held = held[empty.end() :]
        if not held.startswith(_STARTS):
            if held == b"\r":
                return None  # half of an empty line
            self.is_foreign = len(held) >= _START_MAX or not any(start.startswith(held) for start in _STARTS)
            return None
        end = held.find(HEAD_END) + 4
        if end > self._limits.header_bytes or (end < 4 and len(held) > self._limits.header_bytes):
            raise HeadTooLarge
        if end < 4:
            return None
        head = self.head = read_request(held[:end])
        if head.length is not None and head.length > self._limits.body_bytes:
            raise BodyTooLarge
        self._cutter = ChunkCutter() if head.is_chunked else None
        self._held = held[end:]
        return head

    def _read_length(self, head: RequestHead) -> Whole | None:
        assert head.length is not None  # it is not chunked
        if self._parts:
            if len(self._held) + self._parts_bytes < head.length:
                return None
            self._held = b"".join((self._held, *self._parts))
            self._parts.clear()
            self._parts_bytes = 0
        if len(self._held) < head.length:
            self._parts, self._parts_bytes, self._held = [self._held], len(self._held), b""
            return None
        body, self._held = self._held[: head.length], self._held[head.length :]
        self.head = None
        return Whole(head, body)

    def _read_chunks(self, head: RequestHead) -> Whole | None:
        cutter = self._cutter
        assert cutter is not None  # it is chunked
        held, self._held = self._held, b""
        part = payload_of(cutter.feed(held))
        self._parts.append(part)
        self._parts_bytes += len(part)
        if self._parts_bytes > self._limits.body_bytes:
            raise BodyTooLarge
        if not cutter.is_done:
            return None
        body = b"".join(self._parts)
        self._parts, self._parts_bytes, self._held, self.head = [], 0, cutter.rest, None
        return Whole(head, body)
