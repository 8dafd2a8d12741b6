"""One chunk of a session, from its submission to the last word about it."""

import asyncio
from collections.abc import Sequence

import msgspec

from headway.adapters.gateway.errors import ended_without_answer
from headway.adapters.gateway.ports import Serving
from headway.core.artifacts import Made
from headway.core.effects import Admitted, Deliver, End, ErrorOut, Show
from headway.core.evidence import WorkerMarks
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import Ns


class Outcome(msgspec.Struct, frozen=True):
    """How it ended. Without an error there is a video, and latents where they were asked for."""

    marks: WorkerMarks | None = None
    video: bytes = b""
    latents: bytes = b""
    warnings: tuple[str, ...] = ()  # what of its prompt could not be read
    degraded: dict[str, int | str] = {}  # msgspec copies the default
    error: ErrorOut | None = None


class ChunkRun:
    """Submitted when it is made; `close` belongs into a `finally`."""

    def __init__(self, serving: Serving, request: DiffusionRequest, received_ns: Ns, body_ns: Ns) -> None:
        self.request = request
        self._serving = serving
        self._is_over = False  # or cancelled
        self._is_closed = False
        self._stream = serving.submit(request, received_ns, body_ns)
        self._first = asyncio.ensure_future(self._stream.next())

    async def refused(self) -> ErrorOut | None:
        """Why it was not let in: the front says so before `submit` returns, so that one turn of the loop brings it."""
        await asyncio.sleep(0)
        items = self._first.result() if self._first.done() else ()
        end = next((item for item in items if isinstance(item, End)), None)
        return None if end is None or end.reason is FinishReason.STOP else error_of(end)

    async def run(self) -> Outcome:
        """Drain to the End."""
        made: dict[str, Made] = {}
        degraded: dict[str, int | str] = {}
        items: Sequence[Deliver | Show | Admitted | End] = await self._first
        while True:
            for item in items:
                if isinstance(item, Show):
                    made |= {one.kind: one for one in item.made}
                elif isinstance(item, Admitted):
                    degraded.update(item.degraded)
                elif isinstance(item, End):
                    self._is_over = True
                    return self._outcome(item, made, degraded)
            items = await self._stream.next()

    def _outcome(self, end: End, made: dict[str, Made], degraded: dict[str, int | str]) -> Outcome:
        error, request = error_of(end), self.request
        video, latents = made.get("video"), made.get("latents")
        if error is None and (video is None or (request.hand_on and latents is None)):
            message = f"request {request.id}: chunk of {request.frames} frames came without its video or its latents"
            error = ErrorOut(500, "internal_error", message)
        read = None if video is None else video.read
        return Outcome(
            end.marks,
            b"" if video is None else video.body,
            b"" if latents is None else latents.body,
            () if read is None else tuple(read.warnings),
            degraded,
            error,
        )

    def cancel(self) -> None:
        """Nobody wants it: the device stops at its next step."""
        if not self._is_over:
            self._is_over = True
            self._serving.cancel(self.request.id)

    def close(self, input_bytes: int) -> None:
        """Its bytes have left, or never will. The second time nothing happens."""
        if self._is_closed:
            return
        self._is_closed = True
        self.cancel()
        self._first.cancel()
        self._serving.closed(self.request.id, None, input_bytes)


def error_of(end: End) -> ErrorOut | None:
    """What an End says went wrong."""
    if end.error is not None or end.reason is FinishReason.STOP:
        return end.error
    return ended_without_answer(end.reason)
