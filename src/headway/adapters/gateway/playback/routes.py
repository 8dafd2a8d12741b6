"""The routes of streaming sessions: `/v1/videos/sessions`, and one of them by its id."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry

from headway.adapters.gateway.caller import RequestIndex
from headway.adapters.gateway.door import Door
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Durable, Meters
from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.pictures.bodies import digest, idempotency
from headway.adapters.gateway.pictures.checks import Files
from headway.adapters.gateway.pictures.prepare import PicturePreparer
from headway.adapters.gateway.pictures.schema import SESSIONS, SessionBody, SessionChange
from headway.adapters.gateway.playback.desk import SessionDesk, Sessions
from headway.adapters.gateway.playback.run import Around
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.refusals import no_pictures
from headway.adapters.gateway.settings import GatewaySettings, SloDefaults
from headway.adapters.telemetry.session_metrics import SessionMetrics
from headway.core.errors import RequestError

Endpoint = Callable[[Exchange, str], Awaitable[None]]

_ONE: Final = re.compile(rf"{SESSIONS}/([A-Za-z0-9_-]{{1,128}})")


class Near(msgspec.Struct, frozen=True):
    """What of the gateway its sessions share."""

    serving: Serving
    door: Door
    painter: PicturePreparer
    index: RequestIndex
    settings: GatewaySettings


class SessionRoutes:
    """Endpoints by path. Without a diffusion model they answer 404."""

    def __init__(self, near: Near, kept: Durable | Meters | None, registry: CollectorRegistry) -> None:
        self._near = near
        self._desk: SessionDesk | None = None
        if isinstance(kept, Durable):
            runs = Sessions()
            counts = SessionMetrics(registry, lambda: len(runs))
            around = Around(near.serving, kept.pictures, near.index, near.settings, counts)
            self._desk = SessionDesk(runs, near.painter, kept.answers, around)

    def fixed(self) -> dict[str, dict[str, Endpoint]]:
        """Endpoints of paths without an id."""
        return {SESSIONS: {"POST": self._open, "GET": self._list}}

    def patterns(self) -> list[tuple[re.Pattern[str], dict[str, Endpoint]]]:
        """Endpoints of paths with one."""
        return [(_ONE, {"GET": self._view, "POST": self._change, "DELETE": self._end})]

    def _at(self, exchange: Exchange) -> SessionDesk:
        self._near.door.tenant(exchange)  # 401 before anything is said of what is here
        if self._desk is None:
            raise no_pictures()
        return self._desk

    async def _open(self, exchange: Exchange, _: str) -> None:
        near, desk = self._near, self._at(exchange)
        body = parse_body(await near.door.body(exchange), SessionBody, {})
        slo = near.settings.slo.get(SESSIONS, SloDefaults())
        key = idempotency(exchange, digest(SESSIONS, body, Files()))
        await desk.play(exchange, near.door.caller(exchange, near.door.tenant(exchange), slo), body, key)

    async def _list(self, exchange: Exchange, _: str) -> None:
        found = self._at(exchange).listed(self._near.door.tenant(exchange))
        await _json(exchange, {"object": "list", "data": [run.view() for run in found]})

    async def _view(self, exchange: Exchange, name: str) -> None:
        await _json(exchange, self._at(exchange).find(name, self._near.door.tenant(exchange)).view())

    async def _change(self, exchange: Exchange, name: str) -> None:
        desk, tenant = self._at(exchange), self._near.door.tenant(exchange)
        desk.find(name, tenant)  # 404 before its body
        body = parse_body(await self._near.door.body(exchange), SessionChange, {})
        if body == SessionChange():
            names = ", ".join(f"`{field}`" for field in SessionChange.__struct_fields__)
            raise RequestError(
                f"The body changes nothing: give at least one of {names}.", code="missing_required_parameter"
            )
        run = desk.find(name, tenant)
        from_chunk = run.change(body)
        await _json(exchange, {**msgspec.structs.asdict(run.view()), "from_chunk": from_chunk})

    async def _end(self, exchange: Exchange, name: str) -> None:
        self._at(exchange).find(name, self._near.door.tenant(exchange)).end()
        await _json(exchange, {"id": name, "object": "video.session.deleted", "deleted": True})


async def _json(exchange: Exchange, found: object) -> None:
    await exchange.respond(200, msgspec.json.encode(found))
