"""Runs one generation request: hands its sequences over, feeds their tokens to an output, notices a departing client.

Every submitted sequence is drained to its End and closed exactly once, whatever happens to the client.
"""

import asyncio
from functools import partial
from typing import Protocol

import msgspec

from headway.adapters.gateway.choice import Choice, Piece
from headway.adapters.gateway.errors import ended_without_answer, shutting_down
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.ports import Serving, TokenStream
from headway.adapters.gateway.prepare import Prepared
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.effects import Admitted, Deliver, End, ErrorOut
from headway.core.ids import ModelId
from headway.core.request import LlmRequest
from headway.core.units import Ns


class TokenCounts(Protocol):
    """Where tokens are counted as they are emitted."""

    def prompt_tokens(self, model: str, count: int) -> None: ...

    def generated_tokens(self, model: str, count: int) -> None: ...


class ChoiceRun(msgspec.Struct):
    """One submitted sequence and its choice."""

    index: int
    request: LlmRequest
    choice: Choice
    stream: TokenStream
    first_ns: Ns | None = None  # its first token was written, or reached the edge of a whole answer
    end: End | None = None
    cancelled: bool = False
    degraded: dict[str, int | str] = {}  # what was taken away from it, and what is left; msgspec copies the default


class Output(Protocol):
    """How an answer leaves: whole or as events. Nothing is called after an error but `conclude`."""

    @property
    def pings(self) -> bool:
        """Whether a waiting client is told that the request lives."""
        ...

    @property
    def is_prompt(self) -> bool:
        """`take` may be called in this turn of the loop."""
        ...

    def take(self, run: ChoiceRun, piece: Piece) -> None:
        """New tokens of a choice whose first ones were taken before. Does not wait."""
        ...

    async def took(self, run: ChoiceRun, piece: Piece) -> None:
        """New tokens of a choice."""
        ...

    async def ended(self, run: ChoiceRun, piece: Piece) -> None:
        """A choice is complete."""
        ...

    async def conclude(self, error: ErrorOut | None) -> None:
        """All choices are over."""
        ...

    async def ping(self) -> None:
        """Tell a waiting client that the request lives."""
        ...


class Session:
    """One generation request from its submission to its last byte."""

    def __init__(self, serving: Serving, exchange: Exchange, counts: TokenCounts, settings: GatewaySettings) -> None:
        self._serving, self._exchange, self._counts, self._settings = serving, exchange, counts, settings
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._runs: list[ChoiceRun] = []
        self._error: ErrorOut | None = None
        self._moves_to: ModelId | None = None
        self._gone = False  # nobody reads any more
        self._cancelled_at: float | None = None
        self._stuck = False
        self._ping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, prepared: Prepared, body_ns: Ns) -> list[ChoiceRun]:
        """Hand the sequences over: all of them, or after a failure none is left behind."""
        complete = False
        try:
            for index, request in enumerate(prepared.requests):
                choice = Choice(prepared.answer, prepared.tokenizer, partial(self._serving.text_stopped, request.id))
                stream = self._serving.submit(request, self._exchange.received_ns, body_ns)
                self._runs.append(ChoiceRun(index, request, choice, stream, degraded=dict(prepared.degraded)))
            complete = True
        finally:
            if not complete:
                self._close()
        return self._runs

    async def run(self, output: Output) -> None:
        """Drain every sequence into `output`, then conclude."""
        watch = asyncio.create_task(self._watch())
        self._tick(output, asyncio.current_task())
        try:
            await self._drain_all(output)
            if not self._gone and self.moves_to is None:
                await output.conclude(self._error)
        except asyncio.CancelledError:
            # By our own clock, when the client is stuck; else the server is shutting down and the client is told.
            if self._stuck:
                await self._exchange.abort()
            elif not self._gone:
                self._cancel_all()
                await self._exchange.last(output.conclude(shutting_down()))
        finally:
            self._stop_timers(watch)
            self._close()

    def _close(self) -> None:
        self._cancel_all()
        for run in self._runs:
            self._serving.closed(run.request.id, run.first_ns, self._exchange.body_bytes)

    @property
    def moves_to(self) -> ModelId | None:
        """Where the request is to be submitted again: admission sent it there before anything was answered."""
        return None if self._exchange.started or self._gone else self._moves_to

    def refusal(self) -> ErrorOut:
        """What is answered when it cannot be submitted there."""
        assert self._error is not None  # it came with where to move
        return self._error

    async def _drain_all(self, output: Output) -> None:
        if len(self._runs) == 1:
            await self._drain(self._runs[0], output)
            return
        async with asyncio.TaskGroup() as group:
            for run in self._runs:
                group.create_task(self._drain(run, output))

    async def _drain(self, run: ChoiceRun, output: Output) -> None:
        run.stream.listen(partial(self._take, run, output))
        while run.end is None:
            for item in await run.stream.next():
                if isinstance(item, Deliver):
                    await self._took(run, item, output)
                elif isinstance(item, Admitted):
                    run.degraded.update(item.degraded)
                elif isinstance(item, End):
                    await self._ended(run, item, output)

    def _take(self, run: ChoiceRun, output: Output, item: Deliver) -> bool:
        """The steady state: tokens of an answer that has begun, to a client that takes them. No task switch."""
        if run.first_ns is None or self._quiet or not output.is_prompt:
            return False
        piece = self._pushed(run, item)
        if piece is not None:
            output.take(run, piece)
        return True

    async def _took(self, run: ChoiceRun, item: Deliver, output: Output) -> None:
        if run.choice.tokens == 0:
            self._counts.prompt_tokens(run.request.model, len(run.request.prompt))
        piece = self._pushed(run, item)
        if piece is None or self._quiet:
            return
        await output.took(run, piece)
        if run.first_ns is None:
            run.first_ns = self._serving.now_ns()

    def _pushed(self, run: ChoiceRun, item: Deliver) -> Piece | None:
        """What it adds; None behind a stop string."""
        choice = run.choice
        before = choice.tokens
        piece = choice.push(item)
        if choice.tokens == before:
            return None
        self._counts.generated_tokens(run.request.model, choice.tokens - before)
        return piece

    async def _ended(self, run: ChoiceRun, end: End, output: Output) -> None:
        run.end = end
        piece = run.choice.end(end)
        if run.choice.finish_reason is None:
            if self._error is None:
                self._moves_to = end.transfer_to
            self._fail(end.error or ended_without_answer(end.reason))
        elif not self._quiet:
            await output.ended(run, piece)

    @property
    def _quiet(self) -> bool:
        return self._gone or self._error is not None

    def _fail(self, error: ErrorOut) -> None:
        if self._error is None:
            self._error = error
            self._cancel_all()

    def _cancel_all(self) -> None:
        for run in self._runs:
            if run.end is None and not run.cancelled:
                run.cancelled = True
                self._serving.cancel(run.request.id)
        if self._cancelled_at is None:
            self._cancelled_at = self._loop.time()

    async def _watch(self) -> None:
        await self._exchange.left()
        self._gone = True
        self._cancel_all()

    def _tick(self, output: Output, task: asyncio.Task[None] | None) -> None:
        """Look after time limits; runs twice per ping interval."""
        now, limits = self._loop.time(), self._settings.stream
        stalled, cancelled = self._exchange.writing_since, self._cancelled_at
        if now - self._began > self._settings.limits.request_timeout_s:
            limit = self._settings.limits.request_timeout_s
            self._fail(ErrorOut(408, "request_timeout", f"The request took longer than the limit of {limit:g} s."))
        overdue = [at for at in (stalled, cancelled) if at is not None and now - at > limits.stall_timeout_s]
        if overdue and task is not None:
            self._gone = self._stuck = True
            task.cancel()
            return
        waited = now - (self._exchange.sent_at or self._began)
        if output.pings and not self._quiet and stalled is None and waited >= limits.ping_s:
            self._ping = self._loop.create_task(output.ping())
        self._timer = self._loop.call_later(limits.ping_s / 2, self._tick, output, task)

    def _stop_timers(self, watch: asyncio.Task[None]) -> None:
        watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()
