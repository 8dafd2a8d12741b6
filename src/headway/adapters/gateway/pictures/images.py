"""`POST /v1/images/...`: pictures at once, as a stream, or as a job; and once only under an idempotency key."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from headway.adapters.gateway.caller import Caller, Remembered, RequestIndex
from headway.adapters.gateway.errors import error_out, shutting_down
from headway.adapters.gateway.exchange import ClientLeft, Exchange
from headway.adapters.gateway.job_ports import Durable, Held, IdempotencyKey, KeptPicture, NewJob, Usage
from headway.adapters.gateway.pictures.answers import (
    MEDIA_TYPES,
    ImageAnswer,
    completed_events,
    cost_of,
    image_answer,
    partial_event,
    with_urls,
)
from headway.adapters.gateway.pictures.bodies import origin, replayed
from headway.adapters.gateway.pictures.cache import ResultCache
from headway.adapters.gateway.pictures.echo import image_echo
from headway.adapters.gateway.pictures.prepare import Asked, as_it_ran
from headway.adapters.gateway.pictures.progress import percent, with_steps
from headway.adapters.gateway.pictures.session import Outcome, PictureSession
from headway.adapters.gateway.ports import PictureEstimate, Serving
from headway.adapters.gateway.prices import today
from headway.adapters.gateway.rate_headers import rate_headers
from headway.adapters.gateway.render import PING, error_event
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.effects import ErrorOut, Show
from headway.core.errors import CapacityError, RequestError
from headway.core.request import Content

StreamKind = Literal["image_generation", "image_edit"]

_encode: Final = msgspec.json.Encoder().encode


class Call(msgspec.Struct, frozen=True):
    """One synchronous request for pictures."""

    exchange: Exchange
    caller: Caller
    asked: Asked
    stream: StreamKind | None  # None: the answer comes whole
    by_url: bool
    key: IdempotencyKey | None


class ImageRuns:
    """Runs synchronous requests, each to one answer."""

    def __init__(self, serving: Serving, durable: Durable, index: RequestIndex, settings: GatewaySettings) -> None:
        self._serving, self._durable, self._index, self._settings = serving, durable, index, settings
        self._sheet = settings.sheet
        self._cache = ResultCache(settings.limits.result_cache_bytes)

    async def answer(self, call: Call) -> None:
        """Answer. Raises RequestError and CapacityError for what is refused before it runs."""
        if call.key is None:
            await self._fresh(call, _ignored)
            return
        tenant, key = call.caller.tenant.id, call.key
        held = await self._first(call, key)
        if held.answer is not None:
            replayed(call.exchange)
            await _reply(call, msgspec.json.decode(held.answer, type=ImageAnswer))
            return
        made: list[ImageAnswer] = []  # stored and metered, whether or not its client still gets it
        try:
            await self._fresh(call, made.append)
        finally:
            if made:
                await asyncio.shield(self._durable.answers.finish(tenant, key, _encode(made[0])))
            else:
                await asyncio.shield(self._durable.answers.abandon(tenant, key))

    async def _first(self, call: Call, key: IdempotencyKey) -> Held:
        """Take the key, or wait for who has it, as long as the client does."""
        taking = asyncio.ensure_future(self._durable.answers.begin(call.caller.tenant.id, key))
        left = asyncio.ensure_future(call.exchange.left())
        try:
            await asyncio.wait({taking, left}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                return taking.result()
            raise ClientLeft
        finally:
            left.cancel()
            taking.cancel()

    async def _fresh(self, call: Call, made: Callable[[ImageAnswer], None]) -> None:
        """Run it, unless it was run before; `made` is told of the answer before its client is."""
        tenant, asked = call.caller.tenant.id, call.asked
        keeps = asked.request.deterministic and not call.by_url
        if keeps and (known := self._cache.get(tenant, asked.digest)) is not None:
            made(known)
            await _reply(call, known)
            return
        answer = await self._run(call, self.check_duration(asked), made)
        if keeps and answer is not None and answer.degraded is msgspec.UNSET:  # with less load it would be another one
            self._cache.put(tenant, asked.digest, answer)

    def check_duration(self, asked: Asked) -> PictureEstimate | None:
        """Return what it is believed to take; None where nobody can tell, as while its only replica starts again: then
        it waits, as text does.

        Raises RequestError: `unservable` for what no replica has the memory for, `use_async` for what a client should
        not wait for with an open connection.
        """
        try:
            found = self._serving.foresee(asked.request)
        except CapacityError:
            return None
        limit = self._settings.limits.sync_s
        if found is not None and found.unservable is not None:
            raise RequestError(found.unservable, code="unservable")
        if found is not None and found.work_s > limit:
            raise RequestError(
                f"The request is predicted to take {found.work_s:.1f} s, above the limit of {limit:g} s for an open "
                "connection; send the header `prefer: respond-async`, or ask for fewer steps or pixels.",
                code="use_async",
            )
        return found

    async def _run(
        self, call: Call, believed: PictureEstimate | None, made: Callable[[ImageAnswer], None]
    ) -> ImageAnswer | None:
        """None when it failed or nobody waits for it."""
        exchange, caller, asked = call.exchange, call.caller, call.asked
        request = asked.request
        exchange.own_headers = [
            (b"x-request-id", caller.public_id.encode()),
            (b"traceparent", caller.trace.parent.encode()),
            *rate_headers(self._serving.rate_limits(caller.tenant.id)),
        ]
        entry = Remembered(caller.tenant.id, (request.id,), caller.trace.trace_id)
        for name in (request.id, caller.public_id):
            self._index.remember(name, entry)
        session = PictureSession(self._serving, exchange, self._settings)
        stream = None if call.stream is None else _Stream(call, believed, self._settings)
        try:
            outcome = await session.run(request, caller.body_ns, _nothing if stream is None else stream.show)
            if session.is_gone:
                raise ClientLeft
            if outcome.error is not None:
                await _fail(call, outcome.error)
                return None
            ended_ns = self._serving.now_ns()
            try:
                answer = await self._kept(call, outcome)
            finally:
                session.stored_ns = self._serving.now_ns() - ended_ns
            made(answer)
            await _reply(call, answer)
            return answer
        except asyncio.CancelledError:
            session.cancel()
            await exchange.last(_fail(call, shutting_down()))
            raise
        except (RequestError, CapacityError) as error:  # it could not be kept
            await _fail(call, error_out(error))
            return None
        finally:
            if stream is not None:
                stream.close()
            session.close()

    async def _kept(self, call: Call, outcome: Outcome) -> ImageAnswer:
        """Store the pictures, so that their addresses answer, and what they took is metered."""
        asked = as_it_ran(call.asked, outcome.degraded, self._serving.models())
        request = asked.request
        used = Usage(request.tenant, request.model, today(), images=request.n, requests=1)
        usd = self._sheet.usd
        cost = cost_of(outcome.end.marks, lambda spent: usd(msgspec.structs.replace(used, gpu_seconds=spent)))
        answer = image_answer(asked, outcome.made, int(time.time()), cost, outcome.degraded)
        wanted = call.asked.request.model
        answer = msgspec.structs.replace(answer, requested_model=wanted)
        kind = MEDIA_TYPES[request.content.form]
        made = zip(outcome.made, answer.seeds, strict=True)
        pictures = [KeptPicture(one.index, kind, one.body, seed, one.read) for one, seed in made]
        # What it was made from is the client's: only its words are kept.
        bare = msgspec.structs.replace(request, model=wanted, content=Content(request.content.prompt), trace=None)
        new = NewJob("image", bare, image_echo(asked, call.by_url), degraded=outcome.degraded)
        await self._durable.pictures.keep(new, pictures, cost.gpu_seconds)
        if not call.by_url:
            return answer
        return with_urls(answer, origin(call.exchange, self._settings.public_url))


class _Stream:
    """Unfinished pictures as events, and a comment now and then while there are none."""

    def __init__(self, call: Call, believed: PictureEstimate | None, settings: GatewaySettings) -> None:
        self._call, self._created, self._number = call, int(time.time()), 0
        self._stages: Mapping[str, float] = {} if believed is None else believed.stages
        left = None if believed is None else believed.degraded.get("steps")  # admission may have less to give by now
        self._assumed = left if isinstance(left, int) else call.asked.request.steps
        self._ping_s = settings.stream.ping_s
        self._pings = asyncio.ensure_future(self._ping())

    async def show(self, item: Show) -> None:
        """Send the previews of an item."""
        for made in item.made:
            if made.kind == "preview" and self._call.stream is not None:
                so_far = percent(with_steps(self._stages, self._assumed, item.total), made.steps, item.total)
                event = partial_event(self._call.stream, self._call.asked, made, self._number, self._created, so_far)
                self._number += 1
                await self._call.exchange.write(event)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._ping_s)
            await self._call.exchange.write(PING)

    def close(self) -> None:
        """Nothing follows."""
        self._pings.cancel()


def _ignored(_: ImageAnswer) -> None:
    """No key waits for it."""


async def _nothing(_: Show) -> None:
    """A whole answer shows nothing before its end."""


async def _reply(call: Call, answer: ImageAnswer) -> None:
    if call.stream is None:
        await call.exchange.respond(200, _encode(answer))
    else:
        for event in completed_events(call.stream, answer):
            await call.exchange.write(event)
        await call.exchange.finish(b"")


async def _fail(call: Call, error: ErrorOut) -> None:
    """Say so in whatever form the answer has begun."""
    if not call.exchange.started:
        await call.exchange.fail(error)
    elif not call.exchange.finished:
        await call.exchange.finish(error_event(error))
