"""The routes of pictures, videos and their jobs: who asks, what is read of the request, and who answers."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from headway.adapters.gateway.caller import Caller, RequestIndex
from headway.adapters.gateway.door import Door
from headway.adapters.gateway.errors import Headers
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Created, Durable, JobKind, JobQuery, JobView, Meters, OutputKind
from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.pictures.bodies import Read, digest, idempotency, origin, read, replayed, wants_job
from headway.adapters.gateway.pictures.checks import Files
from headway.adapters.gateway.pictures.echo import VideoEcho
from headway.adapters.gateway.pictures.images import Call, ImageRuns, StreamKind
from headway.adapters.gateway.pictures.jobs import (
    JobDesk,
    Order,
    id_asked,
    number_asked,
    output_asked,
    owner,
    poll_ms,
)
from headway.adapters.gateway.pictures.prepare import PicturePreparer
from headway.adapters.gateway.pictures.queue import PauseBody, QueueRoutes, ResumeBody
from headway.adapters.gateway.pictures.ranges import give
from headway.adapters.gateway.pictures.schema import (
    SESSIONS,
    EditBody,
    ImageBody,
    PictureBody,
    RemixBody,
    VariationBody,
    VideoBody,
)
from headway.adapters.gateway.pictures.usage import UsageRoutes
from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prepare import GENERATION_ROUTES
from headway.adapters.gateway.refusals import no_pictures
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import GatewaySettings, SloDefaults
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import CapacityError, RequestError

Endpoint = Callable[[Exchange, str], Awaitable[None]]

IMAGE_ROUTES: Final[dict[str, tuple[type[PictureBody], StreamKind]]] = {
    "/v1/images/generations": (ImageBody, "image_generation"),
    "/v1/images/edits": (EditBody, "image_edit"),
    "/v1/images/variations": (VariationBody, "image_edit"),
}
VIDEOS: Final = "/v1/videos"
SLO_ROUTES: Final = (*GENERATION_ROUTES, *IMAGE_ROUTES, VIDEOS, SESSIONS)
JOB_VERBS: Final = ("cancel", "retry", "pause", "resume", "reorder")
_PREFIX: Final[dict[JobKind, str]] = {"image": "/v1/images", "video": VIDEOS}


class PictureRoutes:
    """Endpoints by path. Without jobs behind them they answer 404: no diffusion model is served."""

    def __init__(
        self,
        serving: Serving,
        door: Door,
        preparer: PicturePreparer,
        kept: Durable | Meters | None,
        index: RequestIndex,
        settings: GatewaySettings,
    ) -> None:
        self._door, self._preparer, self._settings = door, preparer, settings
        self._durable = durable = kept if isinstance(kept, Durable) else None
        meters = kept.meters if isinstance(kept, Durable) else kept
        self._used = None if meters is None else UsageRoutes(meters, settings.sheet)
        if durable is not None:
            self._runs = ImageRuns(serving, durable, index, settings)
            self._desk = JobDesk(serving, durable.jobs, index, settings)
            self._queue = QueueRoutes(serving, door.keys, durable.queue)

    def fixed(self) -> dict[str, dict[str, Endpoint]]:
        """Endpoints of paths without an id."""
        table = {path: {"POST": self._open(self._image(*found, path))} for path, found in IMAGE_ROUTES.items()}
        table[VIDEOS] = {"POST": self._open(self._create_video), "GET": self._open(self._list)}
        table["/v1/usage"] = {"GET": self._usage}
        table["/v1/usage/export"] = {"GET": self._export}
        table["/v1/queue"] = {"GET": self._open(self._see_queue)}
        table["/v1/queue/pause"] = {"POST": self._open(self._pause_queue)}
        table["/v1/queue/resume"] = {"POST": self._open(self._resume_queue)}
        return table

    def patterns(self) -> list[tuple[re.Pattern[str], dict[str, Endpoint]]]:
        """Endpoints of paths with one."""
        found: list[tuple[re.Pattern[str], dict[str, Endpoint]]] = []
        for kind, prefix in _PREFIX.items():
            verbs = {verb: self._verb(kind, verb) for verb in JOB_VERBS}
            found += [(_path(prefix, verb), {"POST": self._open(endpoint)}) for verb, endpoint in verbs.items()]
        return [
            *found,
            (_path("/v1/images", "content"), {"GET": self._open(self._picture)}),
            (_path(VIDEOS, "content"), {"GET": self._open(self._video_content)}),
            (_path(VIDEOS, "remix"), {"POST": self._open(self._remix)}),
            (_path("/v1/images"), {"GET": self._open(self._get_image), "DELETE": self._open(self._delete("image"))}),
            (_path(VIDEOS), {"GET": self._open(self._get_video), "DELETE": self._open(self._delete("video"))}),
        ]

    def _open(self, endpoint: Endpoint) -> Endpoint:
        async def answer(exchange: Exchange, argument: str) -> None:
            self._door.tenant(exchange)  # 401 before anything is said of what is here
            if self._durable is None:
                raise no_pictures()
            await endpoint(exchange, argument)

        return answer

    # Pictures

    def _image(self, kind: type[PictureBody], stream: StreamKind, path: str) -> Endpoint:
        async def endpoint(exchange: Exchange, _: str) -> None:
            tenant = self._door.tenant(exchange)
            body, came = await read(self._door, exchange, kind)
            caller = self._caller(exchange, tenant, path)
            is_async, by_url = wants_job(exchange), body.response_format == "url"
            key = idempotency(exchange, came.digest)
            asked = self._preparer.image(body, came.files, caller, came.digest, is_async=is_async)
            if is_async:
                made = await self._desk.make_image(Order(asked, caller, key, body.webhook_url), by_url)
                where = f"{(self._settings.public_url or '').rstrip('/')}{_PREFIX['image']}/{made.job.id}".encode()
                await self._made(exchange, made, 202, [(b"preference-applied", b"respond-async"), (b"location", where)])
                return
            await self._runs.answer(Call(exchange, caller, asked, stream if body.stream else None, by_url, key))

        return endpoint

    async def _picture(self, exchange: Exchange, job: str) -> None:
        body = await self._desk.content("image", job, self._door.tenant(exchange), *_picture_asked(exchange))
        await give(exchange, body)

    async def _get_image(self, exchange: Exchange, job: str) -> None:
        view = await self._desk.view("image", job, self._door.tenant(exchange))
        found = self._desk.shown(view)
        if view.status == "completed":
            found["data"] = await self._desk.image_data(view, origin(exchange, self._settings.public_url))
        await _polled(exchange, view, found)

    # Videos

    async def _create_video(self, exchange: Exchange, _: str) -> None:
        tenant = self._door.tenant(exchange)
        body, came = await read(self._door, exchange, VideoBody)
        caller = self._caller(exchange, tenant, VIDEOS)
        await self._make(exchange, caller, body, came, None)

    async def _remix(self, exchange: Exchange, job: str) -> None:
        tenant = self._door.tenant(exchange)
        asked = parse_body(await self._door.body(exchange), RemixBody)
        view = await self._desk.view("video", job, tenant)
        echo = msgspec.json.decode(view.echo, type=VideoEcho)
        body = msgspec.structs.replace(echo.body, prompt=asked.prompt)
        files = Files(await self._jobs.jobs.pictures(job, owner(tenant)) if echo.has_reference else ())
        came = Read(files, digest(exchange.path, body, files))
        await self._make(exchange, self._caller(exchange, tenant, VIDEOS), body, came, job)

    async def _make(
        self, exchange: Exchange, caller: Caller, body: VideoBody, came: Read, remixed_from: str | None
    ) -> None:
        asked = self._preparer.video(body, came.files, caller, came.digest)
        order = Order(asked, caller, idempotency(exchange, came.digest), body.webhook_url)
        await self._made(exchange, await self._desk.make_video(order, body, remixed_from), 200)

    async def _made(self, exchange: Exchange, made: Created, status: int, headers: Headers | None = None) -> None:
        if made.is_replay:
            replayed(exchange)
        await _polled(exchange, made.job, self._desk.shown(made.job), status, headers)

    async def _list(self, exchange: Exchange, _: str) -> None:
        order = exchange.query.get("order", ["desc"])[-1]
        if order not in ("asc", "desc"):
            raise invalid("order", f"`order` is {order[:64]!r}; it must be asc or desc.")
        query = JobQuery(
            tenant=owner(self._door.tenant(exchange)),
            kind="video",
            after=id_asked(exchange, "after"),
            limit=number_asked(exchange, "limit", 20, 1, 100),
            order="asc" if order == "asc" else "desc",
        )
        await _json(exchange, self._desk.listed(await self._jobs.jobs.list(query)))

    async def _get_video(self, exchange: Exchange, job: str) -> None:
        view = await self._desk.view("video", job, self._door.tenant(exchange))
        await _polled(exchange, view, self._desk.shown(view))

    async def _video_content(self, exchange: Exchange, job: str) -> None:
        output, index = output_asked(exchange)
        body = await self._desk.content("video", job, self._door.tenant(exchange), output, index)
        await give(exchange, body)

    # Jobs of both kinds

    def _delete(self, kind: JobKind) -> Endpoint:
        async def endpoint(exchange: Exchange, job: str) -> None:
            await _json(exchange, await self._desk.delete(kind, job, self._door.tenant(exchange)))

        return endpoint

    def _verb(self, kind: JobKind, verb: str) -> Endpoint:
        async def endpoint(exchange: Exchange, job: str) -> None:
            tenant = self._door.tenant(exchange)
            if verb == "cancel":
                view = await self._desk.cancel(kind, job, tenant)
            elif verb == "reorder":
                before = id_asked(exchange, "before")
                if before is None:
                    raise invalid("before", "`before` names the job that it goes before: ?before=ID.")
                view = await self._desk.reorder(kind, job, before, tenant)
            else:
                view = await self._desk.change(verb, kind, job, tenant)
            await _json(exchange, self._desk.shown(view))

        return endpoint

    async def _usage(self, exchange: Exchange, _: str) -> None:
        tenant = self._door.tenant(exchange)
        await _json(exchange, await self._metered.page(exchange, tenant))

    async def _export(self, exchange: Exchange, _: str) -> None:
        tenant = self._door.tenant(exchange)
        await self._metered.export(exchange, tenant)

    @property
    def _metered(self) -> UsageRoutes:
        if self._used is None:
            raise _no_usage()
        return self._used

    async def _see_queue(self, exchange: Exchange, _: str) -> None:
        await _json(exchange, await self._queue.view(self._door.tenant(exchange)))

    async def _pause_queue(self, exchange: Exchange, _: str) -> None:
        body = parse_body(await self._door.body(exchange) or b"{}", PauseBody, {})
        await _json(exchange, await self._queue.pause(body, self._door.tenant(exchange)))

    async def _resume_queue(self, exchange: Exchange, _: str) -> None:
        body = parse_body(await self._door.body(exchange) or b"{}", ResumeBody, {})
        await _json(exchange, await self._queue.resume(body, self._door.tenant(exchange)))

    @property
    def _jobs(self) -> Durable:
        if self._durable is None:
            raise CapacityError("no jobs are kept here", status=503, code="not_ready")
        return self._durable

    def _caller(self, exchange: Exchange, tenant: Tenant, path: str) -> Caller:
        return self._door.caller(exchange, tenant, self._settings.slo.get(path, SloDefaults()))


def _no_usage() -> RequestError:
    return RequestError("This gateway meters nothing.", status=404, code="usage_not_kept")


def _path(prefix: str, verb: str = "") -> re.Pattern[str]:
    # Ids are ours: whatever else stands there is no path into a table or a folder (SPEC M5).
    return re.compile(rf"{re.escape(prefix)}/([A-Za-z0-9_-]{{1,128}})" + (f"/{verb}" if verb else ""))


async def _polled(
    exchange: Exchange, view: JobView, found: JsonObject, status: int = 200, headers: Headers | None = None
) -> None:
    """A job, with when to look again."""
    after = poll_ms(view)
    again = [] if after is None else [(b"openai-poll-after-ms", str(after).encode())]
    await exchange.respond(status, msgspec.json.encode(found), [*(headers or []), *again])


async def _json(exchange: Exchange, found: JsonObject, status: int = 200) -> None:
    await exchange.respond(status, msgspec.json.encode(found))


def _picture_asked(exchange: Exchange) -> tuple[OutputKind, int]:
    """The k-th picture (`variant=k`), or a preview of a job (`variant=preview&index=k`). Raises RequestError."""
    if exchange.query.get("variant", [""])[-1] == "preview":
        return "preview", number_asked(exchange, "index", 0, 0, 99)
    return "picture", number_asked(exchange, "variant", 0, 0, 9)
