"""One upstream answer as it comes in: its head, its body's framing, its end, and the usage that it tells."""

import re
from typing import Annotated, Final, Literal

import msgspec

from headway.adapters.gateway.relay.ports import AnswerHead, Usage
from headway.adapters.http1.chunks import BadChunk, ChunkCutter, framed, payload_of
from headway.adapters.http1.heads import HEAD_END, AnswerFields, BadHead, dropped_names, read_answer
from headway.core.units import Ns

HEAD_BYTES_MAX: Final = 64 * 1024
HEADS_KEPT: Final = 64
# The client gets those of its own request and its own quota, written by us, and no cookie of a replica that it may
# never meet again. The length is right only where we do not frame anew.
_OURS: Final = frozenset({"content-length", "x-request-id", "traceparent", "x-headway-model", "set-cookie"})
_OURS_PREFIX: Final = "x-ratelimit-"
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_DONE: Final = re.compile(rb"data: ?\[DONE\]")
_ERROR: Final = re.compile(rb'data: ?\{"error"')
TAIL_PART: Final = 1024  # a part so long holds what the end may tell, parts before it are forgotten
TAIL_PARTS: Final = 64


JSON: Final = "application/json"


class BadAnswer(Exception):
    """What came is no answer, or not all of one."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]  # what others say is not added up unseen


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None


_DECODER: Final = msgspec.json.Decoder(_Usage)


class HeadReader:
    """Reads heads. An upstream repeats them, byte for byte within a second: the latest are remembered."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[AnswerFields, AnswerHead]] = {}

    def read(self, head: bytes) -> tuple[AnswerFields, AnswerHead]:
        """Return what a head says and what the client gets of it. Raises BadHead."""
        known = self._known.get(head)
        if known is None:
            fields = read_answer(head)
            known = fields, _shown(fields)
            if len(self._known) >= HEADS_KEPT:
                self._known.clear()
            self._known[head] = known
        return known


def _shown(answer: AnswerFields) -> AnswerHead:
    dropped = dropped_names(answer.headers)
    kept = [
        f"{name}: {value}\r\n"
        for name, value in answer.fields
        if name not in dropped and name not in _OURS and not name.startswith(_OURS_PREFIX)
    ]
    has_length = answer.length is not None
    kept.append(f"content-length: {answer.length}\r\n" if has_length else "transfer-encoding: chunked\r\n")
    lines = f"HTTP/1.1 {answer.status} {answer.reason}\r\n{''.join(kept)}".encode("latin-1")
    content_type = answer.headers.get("content-type", "").lower()
    return AnswerHead(
        answer.status, lines, "length" if has_length else "chunked", content_type.startswith("text/event-stream")
    )


State = Literal["head", "body", "ended"]


class Answer:
    """Fed with what the connection reads. One per request."""

    def __init__(self, heads: HeadReader) -> None:
        self.state: State = "head"
        self.fields: AnswerFields | None = None
        self.head: AnswerHead | None = None
        self.is_unbounded = False  # it ends with the connection
        self.is_clean = True  # nothing came behind its end
        self.first_byte_ns: Ns | None = None
        self._heads = heads
        self._held = b""
        self._left = 0
        self._cutter: ChunkCutter | None = None
        self._parts = 0
        self._tail: list[bytes] = []  # the last parts, for what stands at the end

    def read_head(self, piece: bytes) -> bytes | None:
        """Return what follows the head, once it is complete; `fields` and `head` are set then. Raises BadAnswer."""
        held = self._held + piece if self._held else piece
        while (end := held.find(HEAD_END)) >= 0:
            try:
                fields, head = self._heads.read(held[: end + 4])
            except BadHead as error:
                raise BadAnswer(str(error)) from None
            held = held[end + 4 :]
            if fields.status == 101:
                raise BadAnswer("it switched protocols")
            if fields.status >= 200:
                self.fields, self.head, self._held, self.state = fields, head, b"", "body"
                if fields.is_chunked:
                    self._cutter = ChunkCutter()
                self._left = fields.length or 0
                self.is_unbounded = fields.length is None and not fields.is_chunked
                if fields.length == 0:
                    self._end(held)
                return held
        if len(held) > HEAD_BYTES_MAX or not b"HTTP/1.".startswith(held[:7]):
            raise BadAnswer("what came is no HTTP/1.1")
        self._held = held
        return None

    def read_body(self, piece: bytes) -> bytes:
        """Return what the client gets of it. Raises BadAnswer."""
        cutter = self._cutter
        if cutter is not None:
            try:
                part = cutter.feed(piece)
            except BadChunk as error:
                raise BadAnswer(str(error)) from None
            if cutter.is_done:
                self._end(cutter.rest)
        elif self.is_unbounded:
            self._parts += 1
            part = framed(piece)
        else:
            part = piece if len(piece) <= self._left else piece[: self._left]
            self._left -= len(part)
            self._parts = 1
            if not self._left:
                self._end(piece[len(part) :])
        if part:
            tail = self._tail
            if len(part) >= TAIL_PART:
                tail.clear()
            elif len(tail) >= TAIL_PARTS:
                if sum(map(len, tail)) < TAIL_PART:  # a few bytes at a time
                    tail[:] = [b"".join(tail)]
                else:
                    del tail[: TAIL_PARTS // 2]
            tail.append(part)
        return part

    def _end(self, rest: bytes) -> None:
        self.state = "ended"
        self.is_clean = not rest

    def closed(self) -> None:
        """The upstream closed. Raises BadAnswer when the answer was not complete."""
        fields = self.fields
        if fields is None:
            raise BadAnswer("it closed before an answer came")
        if self.state == "ended":
            return
        if fields.length is not None or fields.is_chunked:
            raise BadAnswer("its answer was cut off")
        self._end(b"")

    @property
    def is_json(self) -> bool:
        """It is an answer in one piece."""
        fields = self.fields
        return fields is not None and fields.status == 200 and fields.headers.get("content-type", "").startswith(JSON)

    def payload(self, body: bytes) -> bytes:
        """Return the bytes of a body that was read, without its framing."""
        return payload_of(body) if self.head is not None and self.head.framing == "chunked" else body

    @property
    def is_told_over(self) -> bool:
        """False for an event stream that ended in silence (semantic-router#3063)."""
        head = self.head
        if head is None or not head.is_event_stream or head.status != 200:
            return True
        end = self._end_of_body()
        return _DONE.search(end) is not None or _ERROR.search(end) is not None

    def _end_of_body(self) -> bytes:
        return self.payload(b"".join(self._tail))

    def usage(self, at_ns: Ns) -> Usage:
        """What it told of its cost, else what was counted."""
        chunks = self._cutter.chunks if self._cutter is not None else self._parts
        end = self._end_of_body()
        at = end.rfind(b'"usage"')
        match = _USAGE.match(end, at) if at >= 0 else None
        told = None
        if match is not None:
            try:
                told = _DECODER.decode(match[1])
            except (msgspec.DecodeError, UnicodeDecodeError):
                told = None  # of another shape
        if told is None:
            return Usage(None, None, None, chunks, self.first_byte_ns, at_ns)
        details = told.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return Usage(told.prompt_tokens, told.completion_tokens, cached, chunks, self.first_byte_ns, at_ns)
