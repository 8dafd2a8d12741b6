"""Errors on the wire: OpenAI's object, and the headers that clients act on."""

import math
import re
from typing import Final

import msgspec

from headway.core.effects import ErrorOut
from headway.core.errors import CapacityError, EngineError, RequestError
from headway.core.request import FinishReason

_ID: Final = re.compile(r"request (?=\S*[-_0-9])[^\s:]+(:?) ")
Headers = list[tuple[bytes, bytes]]

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
# Trying again at once can help: another replica takes the request.
_RETRY_AT_ONCE: Final = frozenset({"engine_lost", "no_replica"})
# OpenAI's clients wait for no longer than this: told of more they spend their retries within seconds.
_WAITED_MS_MAX: Final = 60_000


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    error: _Error


def error_out(error: RequestError | CapacityError | EngineError) -> ErrorOut:
    """Return the wire's view of an error raised by us."""
    param = error.param if isinstance(error, RequestError) else None
    retry_after_ms = error.retry_after_ms if isinstance(error, CapacityError) else None
    return ErrorOut(error.status, error.code, str(error), retry_after_ms, param)


def internal_error() -> ErrorOut:
    """What a client is told of a bug of ours: no internals."""
    return ErrorOut(500, "internal_error", "The server failed on this request; its log has the details.")


def shutting_down() -> ErrorOut:
    """What a client is told whose request the server gave up in order to stop."""
    return ErrorOut(503, "shutting_down", "The server is shutting down.", retry_after_ms=1000)


def ended_without_answer(reason: FinishReason) -> ErrorOut:
    """Return the error for an End that says neither stop nor length and brings no error."""
    match reason:
        case FinishReason.DEADLINE:
            return ErrorOut(408, "deadline_passed", "The request's deadline passed before it ended.")
        case FinishReason.LOST:
            return ErrorOut(502, "engine_lost", "The replica was lost and the request could not be resumed.")
        case FinishReason.REJECTED:
            return ErrorOut(429, "queue_full", "The request was not admitted.")
        case _:
            return ErrorOut(409, "cancelled", "The request was cancelled.")


def told(message: str) -> str:
    """A message without the id that our log knows its request by: clients know it by another one, or by none."""
    if not (found := _ID.match(message)):
        return message
    rest = message[found.end() :]
    return f"{rest[:1].upper()}{rest[1:]}" if found[1] else f"The request {rest}"


def error_body(error: ErrorOut) -> bytes:
    """Render the error object."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return msgspec.json.encode(ErrorBody(_Error(told(error.message), kind, error.param, error.code)))


def error_headers(error: ErrorOut) -> Headers:
    """`retry-after-ms`, `retry-after` and `x-should-retry`: true only if trying elsewhere can help, or waiting for as
    long as clients do."""
    headers: Headers = []
    if error.retry_after_ms is not None:
        headers.append((b"retry-after-ms", str(error.retry_after_ms).encode()))
        headers.append((b"retry-after", str(math.ceil(error.retry_after_ms / 1000)).encode()))
    if error.status in (408, 409, 429) or error.status > 500:
        wait_ms = error.retry_after_ms
        is_short = wait_ms is not None and wait_ms <= _WAITED_MS_MAX
        retry = (is_short and error.waiting_helps) or error.code in _RETRY_AT_ONCE
        headers.append((b"x-should-retry", b"true" if retry else b"false"))
    return headers
