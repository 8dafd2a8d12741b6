"""Heads of requests and answers, read strictly (RFC 9112): what two servers could read differently is refused.

Refused, although lenient servers take it: bare LF, folded lines, space before a colon, a length beside an encoding, two
lengths, an encoding other than `chunked`. So nothing can be smuggled past us to an upstream, whatever it tolerates.
"""

import re
from typing import Final

import msgspec

HEAD_END: Final = b"\r\n\r\n"
_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_FIELDS: Final = rf"((?:{_NAME}:[\t\x20-\x7e\x80-\xff]*+\r\n)*+)\r\n"
_REQUEST: Final = re.compile(rf"({_NAME}) ([\x21-\x7e]++) HTTP/1\.([01])\r\n{_FIELDS}")
_ANSWER: Final = re.compile(rf"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*+))?\r\n{_FIELDS}")
_FIELD: Final = re.compile(r"([^:\r\n]++):([^\r\n]*+)\r\n")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
ONCE: Final = frozenset({"content-length", "transfer-encoding", "host", "authorization", "content-type"})
# RFC 9110 7.6.1, and what a connection was told beside.
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    }
)

Fields = list[tuple[str, str]]  # names in lower case, in their order


class BadHead(Exception):
    """The bytes are no head that everybody reads alike."""


class RequestHead(msgspec.Struct):
    """One request's head. `headers` joins repeated fields with a comma; `fields` keeps them apart."""

    method: str
    target: str
    minor: int
    fields: Fields
    headers: dict[str, str]
    length: int | None  # of the body; None with `is_chunked`
    is_chunked: bool
    keep_alive: bool


class AnswerFields(msgspec.Struct):
    """One answer's head. Neither `length` nor `is_chunked`: the body ends with the connection."""

    status: int
    reason: str
    fields: Fields
    headers: dict[str, str]
    length: int | None
    is_chunked: bool
    keep_alive: bool


def read_request(head: bytes) -> RequestHead:
    """Read a request's head, which ends with its empty line. Raises BadHead."""
    match = _REQUEST.fullmatch(head.decode("latin-1"))
    if match is None:
        raise BadHead("malformed request head")
    method, target, minor, lines = match.groups()
    fields, headers = _read_fields(lines)
    if minor == "1" and "host" not in headers:
        raise BadHead("no host")
    length, is_chunked = _body(headers)
    if is_chunked and minor == "0":
        raise BadHead("chunked body in HTTP/1.0")
    if length is None and not is_chunked:
        length = 0
    return RequestHead(
        method, target, int(minor), fields, headers, length, is_chunked, _keeps_alive(headers, minor == "1")
    )


def read_answer(head: bytes) -> AnswerFields:
    """Read an answer's head, which ends with its empty line. Raises BadHead."""
    match = _ANSWER.fullmatch(head.decode("latin-1"))
    if match is None:
        raise BadHead("malformed answer head")
    minor, status, reason, lines = match.groups()
    fields, headers = _read_fields(lines)
    length, is_chunked = _body(headers)
    code = int(status)
    if code < 200 or code in (204, 304):
        length, is_chunked = 0, False
    keep_alive = _keeps_alive(headers, minor == "1") and (is_chunked or length is not None)
    return AnswerFields(code, reason or "", fields, headers, length, is_chunked, keep_alive)


def _read_fields(lines: str) -> tuple[Fields, dict[str, str]]:
    fields: Fields = []
    headers: dict[str, str] = {}
    for raw_name, raw_value in _FIELD.findall(lines):
        name, value = raw_name.lower(), raw_value.strip(" \t")
        fields.append((name, value))
        if name in headers:
            if name in ONCE:
                raise BadHead(f"{name} twice")
            headers[name] += f", {value}"
        else:
            headers[name] = value
    return fields, headers


def _body(headers: dict[str, str]) -> tuple[int | None, bool]:
    encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if encoding is not None:
        if encoding.lower() != "chunked":
            raise BadHead("a transfer encoding other than chunked")
        if length is not None:
            raise BadHead("a length beside a transfer encoding")
        return None, True
    if length is None:
        return None, False
    if _LENGTH.fullmatch(length) is None:
        raise BadHead("a length that is no number")
    return int(length), False


def _keeps_alive(headers: dict[str, str], by_default: bool) -> bool:
    connection = headers.get("connection")
    if connection is None:
        return by_default
    options = {option.strip(" \t") for option in connection.lower().split(",")}
    return "close" not in options and (by_default or "keep-alive" in options)


def dropped_names(headers: dict[str, str]) -> frozenset[str]:
    """Fields that end at this hop: the known ones and those that `connection` names."""
    connection = headers.get("connection")
    if connection is None:
        return HOP_BY_HOP
    return HOP_BY_HOP | {option.strip(" \t") for option in connection.lower().split(",")}
