"""Runs one synchronous request for pictures: hands it over, hears what is made, and stops it when its client leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from headway.adapters.gateway.errors import ended_without_answer
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.artifacts import Made
from headway.core.effects import Admitted, End, ErrorOut, Show
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import Ns

OnShow = Callable[[Show], Awaitable[None]]


class Outcome(msgspec.Struct, frozen=True):
    """How it ended: with every picture, or with an error."""

    end: End
    made: tuple[Made, ...] = ()  # by index
    degraded: dict[str, int | str] = {}  # msgspec copies the default
    error: ErrorOut | None = None


class PictureSession:
    """Submitted when it is made; `close` belongs into a `finally`."""

    def __init__(self, serving: Serving, exchange: Exchange, settings: GatewaySettings) -> None:
        self._serving, self._exchange, self._settings = serving, exchange, settings
        self._request: DiffusionRequest | None = None
        self._is_over = False
        self._error: ErrorOut | None = None
        self.is_gone = False  # nobody reads the answer
        self.stored_ns: Ns = 0  # its pictures took so long to be stored

    async def run(self, request: DiffusionRequest, body_ns: Ns, on_show: OnShow) -> Outcome:
        """Submit and drain to the End."""
        stream = self._serving.submit(request, self._exchange.received_ns, body_ns)
        self._request = request
        loop, limit = asyncio.get_running_loop(), self._settings.limits.request_timeout_s
        watch = loop.create_task(self._watch())
        timer = loop.call_later(limit, self._late, limit)
        made: dict[int, Made] = {}
        degraded: dict[str, int | str] = {}
        try:
            while True:
                for item in await stream.next():
                    if isinstance(item, Show):
                        made |= {one.index: one for one in item.made if one.kind == "picture"}
                        if not self.is_gone:
                            await on_show(item)
                    elif isinstance(item, Admitted):
                        degraded.update(item.degraded)
                    elif isinstance(item, End):
                        self._is_over = True
                        return self._outcome(item, made, degraded)
        finally:
            timer.cancel()
            watch.cancel()

    def _outcome(self, end: End, made: dict[int, Made], degraded: dict[str, int | str]) -> Outcome:
        assert self._request is not None  # it has ended
        pictures = tuple(made[index] for index in sorted(made))
        error = self._error or end.error
        if error is None and end.reason is not FinishReason.STOP:
            error = ended_without_answer(end.reason)
        if error is None and len(pictures) != self._request.n:
            message = f"request {self._request.id}: {len(pictures)} of {self._request.n} pictures were made"
            error = ErrorOut(500, "internal_error", message)
        return Outcome(end, pictures, degraded, error)

    def close(self) -> None:
        """The answer has left, or nobody wants it."""
        if self._request is None:
            return
        if not self._is_over:
            self._serving.cancel(self._request.id)
        self._serving.closed(self._request.id, None, self._exchange.body_bytes, stored_ns=self.stored_ns)

    def cancel(self) -> None:
        """Nobody waits for it: the device stops at its next step."""
        if self._request is not None and not self._is_over:
            self._serving.cancel(self._request.id)

    async def _watch(self) -> None:
        await self._exchange.left()
        self.is_gone = True
        self.cancel()

    def _late(self, limit_s: float) -> None:
        self._error = ErrorOut(408, "request_timeout", f"The request took longer than the limit of {limit_s:g} s.")
        self.cancel()
