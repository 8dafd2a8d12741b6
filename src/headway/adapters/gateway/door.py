"""What every route asks of a request first: whose it is, its body within limits, its id, trace and SLO."""

from collections.abc import AsyncIterator
from typing import Final

from headway.adapters.gateway.caller import Caller, request_id, slo_of, trace_context
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.settings import GatewaySettings, SloDefaults
from headway.adapters.gateway.tenants import KeyTable, Tenant
from headway.core.errors import RequestError

MULTIPART: Final = "multipart/form-data"


class Door:
    """Reads what is before the body of a route."""

    def __init__(self, serving: Serving, settings: GatewaySettings) -> None:
        self._serving, self._settings = serving, settings
        self.keys = KeyTable(settings.auth)

    def tenant(self, exchange: Exchange) -> Tenant:
        """Return whose request it is. Raises RequestError 401."""
        return self.keys.tenant(exchange.headers.get("authorization"))

    async def body(self, exchange: Exchange) -> bytes:
        """Return a JSON body. Raises RequestError, ClientLeft."""
        return await self._whole(exchange, self._settings.limits.body_bytes)

    async def large_body(self, exchange: Exchange) -> bytes:
        """Return a JSON body that may hold pictures. Raises RequestError, ClientLeft."""
        return await self._whole(exchange, self._settings.limits.upload_bytes)

    async def _whole(self, exchange: Exchange, limit: int) -> bytes:
        kind = media_type(exchange)
        if kind != "application/json" and not kind.endswith("+json"):
            raise RequestError(
                f"The body must be application/json, not {kind[:64]}.", status=415, code="unsupported_media_type"
            )
        _refuse_compressed(exchange)
        return await exchange.read_body(limit, self._settings.limits.body_timeout_s)

    def form_parts(self, exchange: Exchange) -> AsyncIterator[bytes]:
        """Return the body of a form as it comes. Raises RequestError, ClientLeft."""
        _refuse_compressed(exchange)
        limits = self._settings.limits
        return exchange.parts(limits.upload_bytes, limits.body_timeout_s)

    def caller(self, exchange: Exchange, tenant: Tenant, slo: SloDefaults) -> Caller:
        """Return who asks, once the body is read. Raises RequestError for headers that say nothing sensible."""
        body_ns = self._serving.now_ns()
        public_id, minted = request_id(exchange.headers)
        if minted:
            public_id = exchange.own_headers[0][1].decode()
        return Caller(
            tenant=tenant,
            public_id=public_id,
            minted=minted,
            trace=trace_context(exchange.headers),
            slo=slo_of(exchange.headers, slo, exchange.received_ns),
            received_ns=exchange.received_ns,
            body_ns=body_ns,
        )


def media_type(exchange: Exchange) -> str:
    """Return the type of the body, without parameters; JSON where none is named."""
    given: str = exchange.headers.get("content-type", "application/json")
    return given.partition(";")[0].strip().lower()


def _refuse_compressed(exchange: Exchange) -> None:
    if exchange.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError("Compressed bodies are not read.", status=415, code="unsupported_media_type")
