"""Jobs as clients see them: videos, and images with `prefer: respond-async`; their lists, contents and ends."""

import base64
import datetime as dt
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from headway.adapters.gateway.caller import Caller, Remembered, RequestIndex
from headway.adapters.gateway.errors import told
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import (
    Body,
    Created,
    IdempotencyKey,
    JobKind,
    JobPage,
    Jobs,
    JobView,
    NewJob,
    OutputKind,
    Usage,
)
from headway.adapters.gateway.pictures.believed import Believed
from headway.adapters.gateway.pictures.echo import ImageEcho, VideoEcho, image_echo, video_echo
from headway.adapters.gateway.pictures.prepare import Asked
from headway.adapters.gateway.pictures.progress import progress_of
from headway.adapters.gateway.pictures.schema import VideoBody
from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prices import PriceSheet
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import RequestError
from headway.core.ids import RequestId, TenantId

POLL_MS_MIN: Final = 250
POLL_MS_MAX: Final = 5000
POLLS: Final = 20  # that a client makes while a job runs, about
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_VIDEO_OUTPUTS: Final[dict[str, OutputKind]] = {
    "video": "video",
    "thumbnail": "thumbnail",
    "spritesheet": "spritesheet",
    "preview": "preview",
}


class Order(msgspec.Struct, frozen=True):
    """What was asked for, and how."""

    asked: Asked
    caller: Caller
    key: IdempotencyKey | None
    webhook_url: str | None


class JobDesk:
    """Creates jobs and shows them."""

    def __init__(self, serving: Serving, jobs: Jobs, index: RequestIndex, settings: GatewaySettings) -> None:
        self._serving, self._jobs, self._index = serving, jobs, index
        self._sheet, self._believed = settings.sheet, Believed(serving)

    async def make_video(self, order: Order, body: VideoBody, remixed_from: str | None = None) -> Created:
        """Queue a video."""
        return await self._create("video", order, lambda stages: video_echo(order.asked, body, remixed_from, stages))

    async def make_image(self, order: Order, by_url: bool) -> Created:
        """Queue pictures."""
        return await self._create("image", order, lambda stages: image_echo(order.asked, by_url, stages))

    async def _create(self, kind: JobKind, order: Order, write: Callable[[Mapping[str, float]], bytes]) -> Created:
        request = order.asked.request
        found = self._believed.foreseen(request)
        if found is not None and found.unservable is not None:
            raise RequestError(found.unservable, code="unservable")
        device_s, stages = 0.0, dict[str, float]()
        if found is not None:
            device_s, stages = found.gpu_seconds, dict(self._believed.stages_asked(request, found))
        made = await self._jobs.create(NewJob(kind, request, write(stages), device_s, order.key, order.webhook_url))
        names = {made.job.id} if made.is_replay else {made.job.id, order.caller.public_id}
        entry = Remembered(made.job.tenant, (RequestId(made.job.id),), order.caller.trace.trace_id)
        for name in sorted(names):
            self._index.remember(name, entry)
        return made

    async def view(self, kind: JobKind, job: str, tenant: Tenant) -> JobView:
        """Return a job of that kind. Raises RequestError 404."""
        return _found(await self._jobs.get(job, owner(tenant)), kind, job)

    async def cancel(self, kind: JobKind, job: str, tenant: Tenant) -> JobView:
        """Stop it. Raises RequestError 404, and 409 for one that had ended otherwise."""
        await self.view(kind, job, tenant)
        after = _found(await self._jobs.cancel(job, owner(tenant)), kind, job)
        if after.status == "completed" or (after.error is not None and after.error.code != "cancelled"):
            raise RequestError(f"Job `{job[:256]}` is over: it {after.status}.", status=409, code="job_over")
        return after

    async def delete(self, kind: JobKind, job: str, tenant: Tenant) -> JsonObject:
        """Remove it, with all that was made. Raises RequestError 404."""
        await self.view(kind, job, tenant)
        if not await self._jobs.delete(job, owner(tenant)):
            raise unknown(kind, job)
        return {"id": job, "object": f"{kind}.deleted", "deleted": True}

    async def change(self, verb: str, kind: JobKind, job: str, tenant: Tenant) -> JobView:
        """Retry, pause or resume it. Raises RequestError 404 and 409."""
        await self.view(kind, job, tenant)
        change = {"retry": self._jobs.retry, "pause": self._jobs.pause, "resume": self._jobs.resume}[verb]
        return _found(await change(job, owner(tenant)), kind, job)

    async def reorder(self, kind: JobKind, job: str, before: str, tenant: Tenant) -> JobView:
        """Put it before another waiting one. Raises RequestError 404 and 409."""
        await self.view(kind, job, tenant)
        await self.view(kind, before, tenant)
        return _found(await self._jobs.reorder(job, owner(tenant), before), kind, job)

    async def content(self, kind: JobKind, job: str, tenant: Tenant, output: OutputKind, index: int) -> Body:
        """Return the bytes of an output. Raises RequestError 404, and 409 while the job is not completed."""
        view = await self.view(kind, job, tenant)
        body = await self._jobs.content(job, owner(tenant), output, index)
        if body is not None:
            return body
        if view.status in ("queued", "in_progress"):
            raise RequestError(f"Job `{job[:256]}` is {view.status}: no {output} yet.", status=409, code="not_ready")
        why = f": {told(view.error.message)}" if view.error is not None else ""
        made = sum(one.kind == output for one in view.outputs)
        which = f"no {output} with the index {index}, it has {made}" if made else f"no {output} to give{why}"
        message = f"Job `{job[:256]}` has {which}"
        raise RequestError(f"{message}.", status=404, code="content_not_found")

    def shown(self, view: JobView) -> JsonObject:
        """A job as its clients see it."""
        shape = image_job if view.kind == "image" else video_object
        made = [
            {"kind": one.kind, "index": one.index, "media_type": one.media_type, "bytes": one.size, "seed": one.seed}
            for one in view.outputs
        ]
        ran = (card.pictures for card in self._serving.models() if card.id == view.ran)
        passes = next((looks.passes if looks.guidance_scale > 1 else 1 for looks in ran if looks is not None), 0)
        progress = progress_of(view, self._believed.stages_of(view, passes))
        return {**shape(view, self._sheet, progress), "outputs": made}

    def listed(self, page: JobPage) -> JsonObject:
        """OpenAI's list object."""
        ends = (page.jobs[0].id, page.jobs[-1].id) if page.jobs else (None, None)
        data = [self.shown(view) for view in page.jobs]
        return {"object": "list", "data": data, "first_id": ends[0], "last_id": ends[1], "has_more": page.has_more}

    async def image_data(self, view: JobView, origin: str) -> list[JsonObject]:
        """Return the pictures of a completed image job, as its client wanted them. Raises RequestError."""
        echo = msgspec.json.decode(view.echo, type=ImageEcho)
        data: list[JsonObject] = []
        for one in (output for output in view.outputs if output.kind == "picture"):
            if echo.by_url:
                variant = f"?variant={one.index}" if one.index else ""
                data.append({"url": f"{origin}/v1/images/{view.id}/content{variant}", "seed": one.seed})
                continue
            body = await self._jobs.content(view.id, view.tenant, "picture", one.index)
            if body is None:  # fewer pictures than were asked for would pass for all of them
                message = f"Job `{view.id}` has no picture {one.index} any more."
                raise RequestError(message, status=404, code="content_not_found")
            data.append({"b64_json": base64.b64encode(body.body).decode(), "seed": one.seed})
        return data


def owner(tenant: Tenant) -> TenantId | None:
    """Whose jobs a tenant may touch; None: everybody's."""
    return None if tenant.admin else tenant.id


def unknown(kind: JobKind, job: str) -> RequestError:
    """What is answered for an id that the tenant has not."""
    return RequestError(f"No {kind} `{job[:256]}`.", status=404, code=f"{kind}_not_found")


def _found(view: JobView | None, kind: JobKind, job: str) -> JobView:
    if view is None or view.kind != kind:
        raise unknown(kind, job)
    return view


def video_object(view: JobView, sheet: PriceSheet, progress: int) -> JsonObject:
    """OpenAI's video object, and what else is known of it."""
    echo = msgspec.json.decode(view.echo, type=VideoEcho)
    error = None if view.error is None else {"code": view.error.code, "message": told(view.error.message)}
    return {
        "id": view.id,
        "object": "video",
        "model": view.ran,
        "requested_model": view.model,
        "status": view.status,
        "progress": progress,
        "created_at": view.created_at,
        "completed_at": view.completed_at,
        "expires_at": view.expires_at,
        "prompt": echo.body.prompt,
        "size": echo.size,
        "seconds": str(echo.seconds),
        "remixed_from_video_id": echo.remixed_from,
        "error": error,
        "eta_s": view.eta_s,
        "parameters": echo.parameters,
        "gpu_seconds": view.gpu_seconds,
        "price_usd": _price(view, sheet, echo.parameters.get("frames")),
        "paused": view.is_paused,
        "queue_paused": view.is_held,
        "attempts": view.attempts,
        "degraded": view.degraded or None,
        "restarted": _restarted(view),
        "prompt_tokens": None if view.read is None else view.read.tokens,
        "warnings": None if view.read is None else list(view.read.warnings) or None,
    }


def _price(view: JobView, sheet: PriceSheet, frames: object) -> float | None:
    """What it cost by the sheet of the day that it ended; None while that is not known."""
    if view.gpu_seconds is None:
        return None
    day = dt.datetime.fromtimestamp(view.completed_at or view.created_at, dt.UTC).date().isoformat()
    images = sum(output.kind == "picture" for output in view.outputs)
    made = frames if isinstance(frames, int) else 0
    return sheet.usd(Usage(view.tenant, view.ran, day, view.gpu_seconds, images, made, 1))


def _restarted(view: JobView) -> JsonObject | None:
    """How often, and why the last time, it began from step 0 although it had a checkpoint; None: never."""
    return {"times": view.restarts, "reason": view.restart_reason} if view.restarts else None


def image_job(view: JobView, sheet: PriceSheet, progress: int) -> JsonObject:
    """An image job, without its pictures."""
    echo = msgspec.json.decode(view.echo, type=ImageEcho)
    error = None if view.error is None else {"code": view.error.code, "message": told(view.error.message)}
    return {
        "id": view.id,
        "object": "image.job",
        "model": view.ran,
        "requested_model": view.model,
        "status": view.status,
        "progress": progress,
        "eta_s": view.eta_s,
        "created_at": view.created_at,
        "completed_at": view.completed_at,
        "expires_at": view.expires_at,
        "size": echo.size,
        "output_format": echo.output_format,
        "parameters": echo.parameters,
        "gpu_seconds": view.gpu_seconds,
        "price_usd": _price(view, sheet, 0),
        "error": error,
        "paused": view.is_paused,
        "queue_paused": view.is_held,
        "attempts": view.attempts,
        "degraded": view.degraded or None,
        "restarted": _restarted(view),
        "prompt_tokens": None if view.read is None else view.read.tokens,
        "warnings": None if view.read is None else list(view.read.warnings) or None,
    }


def poll_ms(view: JobView) -> int | None:
    """When to ask again; None once it is over."""
    if view.status in ("completed", "failed"):
        return None
    eta_ms = 1000.0 * POLLS if view.eta_s is None else view.eta_s * 1000
    return round(min(POLL_MS_MAX, max(POLL_MS_MIN, eta_ms / POLLS)))


def output_asked(exchange: Exchange) -> tuple[OutputKind, int]:
    """Return which output of a video its query names. Raises RequestError."""
    variant = exchange.query.get("variant", ["video"])[-1]
    if variant not in _VIDEO_OUTPUTS:
        raise invalid("variant", f"`variant` is {variant[:64]!r}; it must be one of {', '.join(_VIDEO_OUTPUTS)}.")
    return _VIDEO_OUTPUTS[variant], number_asked(exchange, "index", 0, 0, 99)


def id_asked(exchange: Exchange, name: str) -> str | None:
    """Return the job that the query names; None: it names none. Raises RequestError 404 for what is no id."""
    text = exchange.query.get(name, [""])[-1]
    if text and not _ID.fullmatch(text):
        raise RequestError(
            f"`{name}` is {text[:64]!r}: there is no such job.", status=404, code="job_not_found", param=name
        )
    return text or None


def number_asked(exchange: Exchange, name: str, default: int, least: int, most: int) -> int:
    """Return a number of the query. Raises RequestError outside its range."""
    text = exchange.query.get(name, [str(default)])[-1]
    number = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else -1
    if not least <= number <= most:
        raise invalid(name, f"`{name}` is {text[:64]!r}; it must be a number from {least} to {most}.")
    return number
