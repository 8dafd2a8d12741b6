"""One request at one upstream: what is sent, and what its answer means (`gateway/relay/ports.UpstreamCall`)."""

import re
from typing import TYPE_CHECKING, Final

import msgspec

from headway.adapters.gateway.relay.ports import Answering, Exchange, Target
from headway.adapters.http1.sweep import NEVER
from headway.adapters.upstream.answer import Answer, BadAnswer
from headway.adapters.upstream.connection import UpstreamConnection

if TYPE_CHECKING:
    from headway.adapters.upstream.pool import UpstreamPool

HELD_MAX: Final = 256 * 1024  # of a JSON answer; a longer one leaves as it comes
SHOWN: Final = 200  # bytes of an upstream's error that the log gets
_TOP_LEVEL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
RETRY_AFTER_MS_MAX: Final = 60_000  # of what an upstream may ask for: then it is asked again, whatever it said
REFUSALS: Final = frozenset({429, 503})
_OF_ONE_REQUEST: Final = re.compile(rb'"code"\s*:\s*"slo_unattainable"')


class Call:
    """Ends once: by `done`, `refused` or `fault` of its `answering`, or in silence by `cancel`."""

    def __init__(self, pool: "UpstreamPool", exchange: Exchange, target: Target, answering: Answering) -> None:
        self.deadline = NEVER  # of the sweep, while it waits for a connection
        self.is_over = False
        self._pool, self._exchange, self._target, self._answering = pool, exchange, target, answering
        self._connection: UpstreamConnection | None = None
        self._answer: Answer | None = None
        self._has_begun = False
        self._held = b""
        self._is_paused = False
        self._is_retried = False
        self._time, self._idle_s = pool.loop.time, pool.settings.idle_timeout_s

    # From the pool

    def go(self, connection: UpstreamConnection) -> None:
        """Send it."""
        exchange, pool = self._exchange, self._pool
        body = exchange.body if self._target == _AS_IT_CAME else _rewritten(exchange.body, self._target)
        own = b""
        if pool.endpoint.authorization == "forward" and exchange.authorization is not None:
            own = b"authorization: %b\r\n" % exchange.authorization
        head = b"POST %b%b HTTP/1.1\r\n%b%b%bcontent-length: %d\r\n\r\n" % (
            pool.base,
            exchange.path,
            pool.head,
            own,
            exchange.forwarded,
            len(body),
        )
        self._connection = connection
        connection.deadline = pool.loop.time() + pool.settings.first_byte_timeout_s
        self._answer = connection.send(self, head, body)

    def unreachable(self, reason: str) -> None:
        """No connection could be made."""
        if not self.is_over:
            self._end()
            self._answering.fault(reason)

    def late(self) -> None:
        """No connection became free."""
        if not self.is_over:
            self._end()
            self._answering.refused(503, None)

    # From the connection

    def heard(self, connection: UpstreamConnection, piece: bytes) -> None:
        """Bytes of the answer."""
        answer = self._answer
        assert answer is not None  # it was sent
        if not self._is_paused:
            connection.deadline = self._time() + self._idle_s
        try:
            if self._has_begun:
                part = answer.read_body(piece)
                if answer.state == "ended":
                    self._complete(answer, part)
                elif part:
                    self._exchange.write(part)
                return
            is_held = answer.state != "head"
            if is_held:
                self._hold(answer, answer.read_body(piece))
                return
            rest = answer.read_head(piece)
            if rest is not None and self._may_forward(answer, rest):
                part = answer.read_body(rest) if rest and answer.state != "ended" else b""
                answer.first_byte_ns = self._pool.now_ns()
                if answer.is_json:
                    self._hold(answer, part)
                else:
                    self._begin(answer, part)
        except BadAnswer as error:
            self._fault(str(error))

    def _hold(self, answer: Answer, part: bytes) -> None:
        """Nobody can use half of a JSON answer: it leaves when it is whole and is JSON, so that one which is cut or
        spoilt can be asked for elsewhere."""
        self._held = self._held + part if self._held else part
        if answer.state != "ended":
            if len(self._held) > HELD_MAX:
                self._begin(answer, self._held)
            return
        require_json(answer.payload(self._held))
        self._begin(answer, self._held)

    def _begin(self, answer: Answer, part: bytes) -> None:
        if answer.state == "ended":  # nothing of it has left: another may answer in its place
            _require_told(answer)
        exchange = self._exchange
        exchange.attach(self)  # of two hedged calls the one that answers is paused and resumed
        assert answer.head is not None  # it was read
        self._has_begun = True
        exchange.begin(answer.head)
        if answer.state == "ended":
            self._complete(answer, part)
            return
        self._answering.begun()
        if self.is_over:  # the front did not want it any more
            return
        if part:
            exchange.write(part)
        else:
            exchange.flush()

    def broke(self, connection: UpstreamConnection, reason: str) -> None:
        """The connection was closed."""
        if connection.uses and not connection.has_heard and not self._is_retried:
            # It was closed while it idled, and the request crossed the news of it: nobody has seen the request
            # (sglang#9926). Once, on a connection that cannot be stale.
            self._is_retried = True
            self._pool.place(self, is_fresh=True)
            return
        answer = self._answer
        assert answer is not None  # it was sent
        try:
            answer.closed()
            if self._has_begun:
                self._complete(answer, b"")
            else:  # its end was told by the end of the connection
                self._hold(answer, b"")
        except BadAnswer as error:
            self._fault(f"{error} ({reason})")

    def silent(self) -> None:
        """Nothing came in time."""
        settings = self._pool.settings
        answer = self._answer
        has_head = answer is not None and answer.fields is not None
        limit = settings.idle_timeout_s if has_head else settings.first_byte_timeout_s
        self._fault(f"it sent nothing for {limit:g} s")

    def _may_forward(self, answer: Answer, rest: bytes) -> bool:
        """False for what is not an answer to this request but news of the upstream."""
        fields = answer.fields
        assert fields is not None  # it was read
        if fields.status in REFUSALS and not _is_of_one_request(fields.headers, rest):
            retry_after_ms = _retry_after_ms(fields.headers)
            self._end()
            self._answering.refused(fields.status, retry_after_ms)
            return False
        if fields.status >= 500 and fields.status not in REFUSALS:
            self._fault(f"status {fields.status}: {rest[:SHOWN].decode('latin-1')}")
            return False
        return True

    def _complete(self, answer: Answer, last: bytes) -> None:
        try:
            _require_told(answer)
        except BadAnswer:
            if last:
                self._exchange.write(last)
            raise
        fields, connection = answer.fields, self._connection
        assert fields is not None
        assert connection is not None  # an answer has ended
        self.is_over = True
        usage = answer.usage(self._pool.now_ns())
        self._connection = None
        if self._is_paused:
            connection.resume()
        self._pool.release(connection, fields.keep_alive and answer.is_clean and connection.is_open)
        self._exchange.detach(self)
        self._answering.done(usage, "success" if fields.status < 400 else "neutral")
        self._exchange.finish(last)

    def _fault(self, reason: str) -> None:
        self._end()
        self._answering.fault(reason)

    def _end(self) -> None:
        """Over, without an answer; what may still come has nobody to go to."""
        self.is_over = True
        self._pool.sweep.remove(self)
        self._exchange.detach(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # From the exchange and the front

    def cancel(self) -> None:
        """Abort the connection now, so that the engine stops (smg#2136)."""
        if not self.is_over:
            self._end()

    def pause(self) -> None:
        """The client is slow: so may the upstream be, without a timeout."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.deadline = NEVER
            self._connection.pause()

    def resume(self) -> None:
        """Go on reading."""
        self._is_paused = False
        if self._connection is not None:
            self._connection.deadline = self._pool.loop.time() + self._pool.settings.idle_timeout_s
            self._connection.resume()


_AS_IT_CAME: Final = Target()
_JSON: Final = msgspec.json.Decoder(msgspec.Raw)


def require_json(body: bytes) -> None:
    """Raise BadAnswer for what no client could read."""
    try:
        body.decode()
        _JSON.decode(body)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise BadAnswer(f"its answer is no JSON: {error}") from None


def _rewritten(body: bytes, target: Target) -> bytes:
    """Put the upstream's own name, or a lower limit, into the client's JSON; all else stays byte for byte."""
    top: dict[str, object] = dict(_TOP_LEVEL.decode(body))
    if target.model is not None:
        top["model"] = target.model
    if target.max_tokens is not None:
        top["max_completion_tokens" if "max_completion_tokens" in top else "max_tokens"] = target.max_tokens
    return msgspec.json.encode(top)


def _require_told(answer: Answer) -> None:
    """Raise BadAnswer for an event stream that ended in silence."""
    if not answer.is_told_over:
        raise BadAnswer("its stream ended without [DONE]")


def _is_of_one_request(headers: dict[str, str], rest: bytes) -> bool:
    """True for a refusal that says nothing of other requests: no waiting helps, or it is this one's SLO that cannot be
    kept. Its client is told; a replica that rested for it would keep out everybody else. `rest`: what came of the body
    with the head, which is all of it where the upstream is a headway."""
    return headers.get("x-should-retry", "").lower() == "false" or _OF_ONE_REQUEST.search(rest) is not None


def _retry_after_ms(headers: dict[str, str]) -> int | None:
    """What the upstream says in `retry-after-ms` or in seconds of `retry-after`; a date is ignored."""
    for name, scale in (("retry-after-ms", 1), ("retry-after", 1000)):
        given = headers.get(name, "")
        if _SECONDS.fullmatch(given):
            return min(RETRY_AFTER_MS_MAX, round(float(given) * scale))
    return None
