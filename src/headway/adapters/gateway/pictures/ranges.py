"""Parts of a picture or film (RFC 9110, 14): players seek in a film by asking for ranges of it."""

import re
from typing import Final

from headway.adapters.gateway.errors import Headers, error_out
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Body
from headway.core.errors import RequestError

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def give(exchange: Exchange, whole: Body) -> None:
    """Answer with the body, or with the one range of it that is asked for."""
    size, kind = len(whole.body), whole.media_type.encode()
    headers: Headers = [(b"accept-ranges", b"bytes")]
    asked = _RANGE.fullmatch(exchange.headers.get("range", "").strip())
    if asked is None or asked[1] == asked[2] == "":  # several ranges, and other units, may be ignored
        await exchange.respond(200, whole.body, headers, kind)
        return
    start, end = part(asked[1], asked[2], size)
    if start > end:
        message = f"The range {asked[0]} lies outside of the {size} bytes."
        error = error_out(RequestError(message, status=416, code="range_not_satisfiable", param="range"))
        await exchange.fail(error, [(b"content-range", b"bytes */%d" % size)])
        return
    headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end, size)))
    await exchange.respond(206, whole.body[start : end + 1], headers, kind)


def part(first: str, last: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte; the first lies behind the last where there is nothing."""
    if not first:  # the last so many bytes
        return (max(0, size - int(last)), size - 1) if int(last) else (size, size - 1)
    return int(first), min(int(last) if last else size - 1, size - 1)
