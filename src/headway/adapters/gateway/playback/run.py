"""Plays one session to its client: begins each chunk when playback allows it, sends it, and hands its latents on."""

import asyncio
import time
from typing import Final, Literal

import msgspec

from headway.adapters.gateway.caller import Caller, Remembered, RequestIndex
from headway.adapters.gateway.errors import shutting_down
from headway.adapters.gateway.exchange import ClientLeft, Exchange
from headway.adapters.gateway.job_ports import Pictures, Usage
from headway.adapters.gateway.pictures.answers import cost_of
from headway.adapters.gateway.pictures.schema import SessionChange
from headway.adapters.gateway.playback.chunk import ChunkRun, Outcome
from headway.adapters.gateway.playback.clock import Playback
from headway.adapters.gateway.playback.events import Chunk, Completed, Cost, Created, View, event, last_event
from headway.adapters.gateway.playback.film import Film
from headway.adapters.gateway.playback.predicted import Predicted
from headway.adapters.gateway.playback.wire import Wire
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prices import today
from headway.adapters.gateway.rate_headers import rate_headers
from headway.adapters.gateway.render import error_event
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.telemetry.session_metrics import SessionMetrics
from headway.core.effects import ErrorOut
from headway.core.errors import RequestError
from headway.core.ids import RequestId
from headway.core.units import Ns, ms_from_ns, s_from_ns

NAMED: Final = 256  # last chunks that the id of their session names in evidence
Cause = Literal["stopped", "gone"]


class Around(msgspec.Struct, frozen=True):
    """What every session works with."""

    serving: Serving
    pictures: Pictures
    index: RequestIndex
    settings: GatewaySettings
    counts: SessionMetrics


class Sums(msgspec.Struct):
    """Of what was sent."""

    chunks: int = 0
    frames: int = 0
    late_chunks: int = 0
    gpu_seconds: float = 0.0
    usd: float = 0.0


class SessionRun:
    """`answer` is its whole life; the others may be called meanwhile."""

    def __init__(self, film: Film, caller: Caller, exchange: Exchange, around: Around) -> None:
        self.film, self.caller = film, caller
        self._exchange, self._around = exchange, around
        self._created = int(time.time())
        self._words = film.words
        self._playback = Playback(film.ahead)
        self._sums = Sums()
        self._given = b""  # latents of the chunk before
        self._next = 0
        self._named: tuple[RequestId, ...] = ()
        self._chunk: ChunkRun | None = None  # that is being made or sent
        self._cause: Cause | None = None
        self._over = asyncio.Event()
        self._wire: Wire | None = None

    # From its client's other requests

    def change(self, change: SessionChange) -> int:
        """Say other things from now on; return the first chunk that they count for. Raises RequestError, and 409 where
        the last chunk has been begun."""
        if self._cause is not None or self._next >= self.film.chunks:
            message = f"The last chunk of session `{self.film.id}` has been begun: nothing can be changed any more."
            raise RequestError(message, status=409, code="session_over")
        self._words = self.film.changed(self._words, change)
        return self._next

    def end(self, cause: Cause = "stopped") -> None:
        """Make nothing more; what is being made stops at its next step."""
        if self._cause is None:
            self._cause = cause
            self._over.set()
            if self._chunk is not None:
                self._chunk.cancel()
            if self._wire is not None:
                self._wire.hurry()

    def view(self) -> View:
        """As it stands."""
        film, words, sums = self.film, self._words, self._sums
        return View(
            id=film.id,
            model=film.asked.card.id,
            created_at=self._created,
            fps=film.looks.fps,
            size=film.asked.size,
            chunk_frames=film.looks.chunk_frames,
            chunk_seconds=film.chunk_seconds,
            seconds=film.seconds,
            ahead=film.ahead,
            seed=film.asked.request.seed,
            prompt=words.prompt,
            negative_prompt=words.negative_prompt,
            guidance_scale=words.guidance_scale,
            next_chunk=self._next,
            **msgspec.structs.asdict(sums),
        )

    # The stream

    async def answer(self, predicted: Predicted | None) -> str | None:
        """Play it; return why it came to its end, None where it failed. `predicted`: what it is believed to take.
        Raises ClientLeft."""
        exchange, around, caller = self._exchange, self._around, self.caller
        exchange.own_headers = [
            (b"x-request-id", caller.public_id.encode()),
            (b"traceparent", caller.trace.parent.encode()),
            *rate_headers(around.serving.rate_limits(caller.tenant.id)),
        ]
        wire = self._wire = Wire(exchange, around.settings.stream, lambda: self.end("gone"))
        try:
            error = await self._play(wire, predicted)
            if self._cause == "gone":
                raise ClientLeft
            if error is not None and not exchange.started:
                await exchange.fail(error)
            elif error is not None:
                await wire.finish(error_event(error))
            else:
                completed = self._completed()
                await wire.finish(last_event(completed))
                return completed.reason
            return None
        except asyncio.CancelledError:
            self._close()
            if exchange.finished:
                await exchange.abort()  # its last event still waits for it
            elif exchange.started:
                await exchange.last(exchange.finish(error_event(shutting_down())))
            raise
        finally:
            wire.close()
            self._close()

    async def _play(self, wire: Wire, predicted: Predicted | None) -> ErrorOut | None:
        while self._next < self.film.chunks and await self._opens():
            number, chunk = self._next, self._begin()
            if number == 0:
                if (refused := await chunk.refused()) is not None:
                    return refused
                await wire.write(event(self._created_event(predicted)))
            outcome = await self._made(chunk)
            if self._cause is not None:
                return None
            if outcome.error is not None:
                return outcome.error
            await self._send(wire, number, outcome)
            self._close()
        return None

    async def _made(self, chunk: ChunkRun) -> Outcome:
        """Wait for it, but no longer than for any request."""
        limit_s = self._around.settings.limits.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await chunk.run()
        except TimeoutError:
            return Outcome(
                error=ErrorOut(408, "request_timeout", f"A chunk took longer than the limit of {limit_s:g} s.")
            )

    async def _opens(self) -> bool:
        """Wait until the playback is near enough; False where the session ends before that."""
        wait_s = s_from_ns(self._playback.opens_ns - self._around.serving.now_ns())
        if wait_s > 0 and self._cause is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._over.wait()
            except TimeoutError:
                pass
        return self._cause is None

    def _begin(self) -> ChunkRun:
        around, film, number = self._around, self.film, self._next
        now_ns = around.serving.now_ns()
        due_ns = self._playback.due_ns
        played_ns = now_ns + film.length_ns(0) if due_ns is None else due_ns
        request = film.request(number, self._words, self._given, now_ns, played_ns)
        self._remember(request.id)
        self._next += 1
        caller = self.caller
        stamps = (now_ns, now_ns) if number else (caller.received_ns, caller.body_ns)
        self._chunk = ChunkRun(around.serving, request, *stamps)
        return self._chunk

    def _remember(self, request: RequestId) -> None:
        """Evidence is found under each chunk's own id, and of the last ones together under that of the session."""
        caller = self.caller
        self._named = (*self._named, request)[-NAMED:]
        for name, requests in ((request, (request,)), (self.film.id, self._named), (caller.public_id, self._named)):
            self._around.index.remember(name, Remembered(caller.tenant.id, requests, caller.trace.trace_id))

    async def _send(self, wire: Wire, number: int, outcome: Outcome) -> None:
        around, film, chunk = self._around, self.film, self._chunk
        assert chunk is not None  # it was just made
        request = chunk.request
        frames = film.frames(number)
        used = Usage(request.tenant, request.model, today(), frames=frames, requests=int(number == 0))
        usd = around.settings.sheet.usd
        cost = cost_of(outcome.marks, lambda spent: usd(msgspec.structs.replace(used, gpu_seconds=spent)))
        around.pictures.meter(request.id, msgspec.structs.replace(used, gpu_seconds=cost.gpu_seconds))
        late_ns = self._playback.late_ns(around.serving.now_ns())
        told = Chunk(
            id=film.id,
            index=number,
            first_frame=film.first_frame(number),
            frames=frames,
            seconds=frames / film.looks.fps,
            prompt=request.content.prompt,
            seed=request.seed,
            b64_mp4=outcome.video,
            gpu_seconds=cost.gpu_seconds,
            late_ms=ms_from_ns(late_ns),
            cost=Cost(cost.price_usd, cost.stage_seconds),
            degraded=outcome.degraded or None,
            warnings=outcome.warnings or None,
        )
        await wire.write(event(told))
        self._given = outcome.latents
        self._sent(told, film.length_ns(number))

    def _sent(self, told: Chunk, length_ns: Ns) -> None:
        self._playback.sent(self._around.serving.now_ns(), length_ns)
        self._around.counts.sent(self.film.asked.card.id, is_late=told.late_ms > 0)
        sums = self._sums
        sums.chunks += 1
        sums.frames += told.frames
        sums.late_chunks += int(told.late_ms > 0)
        sums.gpu_seconds += told.gpu_seconds
        sums.usd += told.cost.usd

    def _close(self) -> None:
        if self._chunk is not None:
            self._chunk.close(self._exchange.body_bytes)
            self._chunk = None

    # What is said of it

    def _created_event(self, predicted: Predicted | None) -> Created:
        film = self.film
        return Created(
            id=film.id,
            model=film.asked.card.id,
            fps=film.looks.fps,
            size=film.asked.size,
            chunk_frames=film.looks.chunk_frames,
            chunk_seconds=film.chunk_seconds,
            predicted_chunk_seconds=None if predicted is None else predicted.chunk_s,
            realtime=None if predicted is None else predicted.keeps_up(film),
            seed=film.asked.request.seed,
        )

    def _completed(self) -> Completed:
        reason = self._cause or self.film.end
        return Completed(id=self.film.id, reason=reason, **msgspec.structs.asdict(self._sums))
