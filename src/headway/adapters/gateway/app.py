"""The ASGI application: a table of routes, and for each request who it is, what it may do, and how it ends."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from headway.adapters.gateway.caller import Caller, Remembered, minted_id, refuse_key, request_id
from headway.adapters.gateway.door import Door
from headway.adapters.gateway.errors import error_out, internal_error, shutting_down
from headway.adapters.gateway.evidence_route import EVIDENCE, EvidenceRoute
from headway.adapters.gateway.exchange import ClientLeft, Exchange, Receive, Scope, Send
from headway.adapters.gateway.explain import ExplainRoute
from headway.adapters.gateway.generate import Generator
from headway.adapters.gateway.job_ports import Durable, Meters
from headway.adapters.gateway.openapi import openapi_json
from headway.adapters.gateway.pictures.prepare import PicturePreparer
from headway.adapters.gateway.pictures.routes import SLO_ROUTES, PictureRoutes
from headway.adapters.gateway.plain import JsonObject, PlainRoutes
from headway.adapters.gateway.playback.predicted import Estimates
from headway.adapters.gateway.playback.routes import Near, SessionRoutes
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prepare import GENERATION_ROUTES, Models, Preparer, Route
from headway.adapters.gateway.prompts import Encoder
from headway.adapters.gateway.relay.prepare import Prepared as Relayed
from headway.adapters.gateway.replicas import VERBS, ReplicaRoutes, Verb
from headway.adapters.gateway.scrape import scrape
from headway.adapters.gateway.settings import GatewaySettings, SloDefaults, check_settings
from headway.adapters.gateway.tenants import Tenant
from headway.adapters.telemetry.metrics import CONTENT_TYPE, Metrics
from headway.adapters.tokenizer import Tokenizer
from headway.core.errors import CapacityError, EngineError, RequestError

Endpoint = Callable[[Exchange, str], Awaitable[None]]

_MODEL: Final = re.compile(r"/v1/models/(.+)")
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")
_VERBS: Final = {verb: re.compile(rf"/v1/replicas/(.+)/{verb}") for verb in (*VERBS, "warm")}


def build_app(
    serving: Serving,
    tokenizers: Mapping[str, Tokenizer],
    settings: GatewaySettings,
    kept: Durable | Meters | None = None,
) -> "Gateway":
    """Return the ASGI application; `kept`: Durable where diffusion models are served, else only what is metered. Raises
    ConfigError for settings that cannot work."""
    check_settings(settings, SLO_ROUTES)
    return Gateway(serving, tokenizers, settings, kept)


class Gateway:
    """ASGI 3 application for HTTP and lifespan."""

    def __init__(
        self,
        serving: Serving,
        tokenizers: Mapping[str, Tokenizer],
        settings: GatewaySettings,
        kept: Durable | Meters | None,
    ) -> None:
        self._serving, self._settings = serving, settings
        self._door = Door(serving, settings)
        self._encoder = Encoder()
        models = Models(serving, tokenizers)
        self._preparer = Preparer(serving, models, self._encoder, settings)
        painter = PicturePreparer(serving, models, settings.limits)
        estimates = Estimates(serving, painter, settings)
        self._plain = PlainRoutes(serving, models, self._preparer, self._encoder, estimates, settings)
        self.metrics = Metrics(lambda: scrape(serving), vllm_aliases=settings.metrics_aliases == "vllm")
        serving.on_record(self.metrics.observe)
        self._replicas = ReplicaRoutes(serving, self._door.keys)
        self._explain = ExplainRoute(serving, self._door.keys, self._preparer, self._encoder, estimates)
        self._generator = Generator(serving, self._preparer, self._plain.index, self.metrics, settings)
        pictures = PictureRoutes(serving, self._door, painter, kept, self._plain.index, settings)
        self._fixed = self._table() | {
            path: {method: self._counted(endpoint) for method, endpoint in methods.items()}
            for path, methods in pictures.fixed().items()
        }
        self._patterns: list[tuple[re.Pattern[str], dict[str, Endpoint]]] = [
            (_MODEL, {"GET": self._known(self._plain.model)}),
            (EVIDENCE, {"GET": EvidenceRoute(serving, self._door, self._plain.index, kept).answer}),
        ]
        near = Near(serving, self._door, painter, self._plain.index, settings)
        sessions = SessionRoutes(near, kept, self.metrics.registry)
        self._fixed |= sessions.fixed()
        self._patterns += [*sessions.patterns(), *pictures.patterns()]
        self._patterns += [(_VERBS[verb], {"POST": self._drain(verb)}) for verb in VERBS]
        self._patterns.append((_VERBS["warm"], {"POST": self._warm}))

    def _table(self) -> dict[str, dict[str, Endpoint]]:
        plain = self._plain
        table: dict[str, dict[str, Endpoint]] = {
            "/v1/models": {"GET": self._known(lambda _: plain.models())},
            "/tokenize": {"POST": self._with_body(plain.tokenize)},
            "/detokenize": {"POST": self._with_body(plain.detokenize)},
            "/health": {"GET": _open(lambda: {"status": "ok"})},
            "/ready": {"GET": _open(plain.ready)},
            "/version": {"GET": _open(plain.version)},
            "/ping": {"GET": _open(dict), "POST": _open(dict)},
            "/load": {"GET": _open(plain.load)},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._document},
            "/debug/trace": {"GET": self._trace},
            "/v1/ledger": {"GET": self._of_tenant(plain.ledger)},
            "/v1/replicas": {"GET": self._of_tenant(self._replicas.listing)},
            "/reset_prefix_cache": {"POST": self._reset},
            "/v1/estimates": {"POST": self._predicted(self._plain.estimate)},
            "/v1/route/explain": {"POST": self._predicted(self._explain.answer)},
        }
        for route in GENERATION_ROUTES:
            table[route] = {"POST": self._generation(route)}
        return table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(Exchange(scope, receive, send, self._serving.now_ns))
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1002})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                self._encoder.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, exchange: Exchange) -> None:
        answered = False
        try:
            await self._dispatch(exchange)
            answered = True
        except ClientLeft:
            answered = True
        except asyncio.CancelledError:
            answered = True
            if not exchange.started:
                await exchange.fail(shutting_down())
        except (RequestError, CapacityError, EngineError) as error:
            answered = True
            if not exchange.started:
                await exchange.fail(error_out(error))
        finally:
            # A bug goes on to the server's log; the client still gets an error in OpenAI's shape.
            if not answered and not exchange.started:
                await exchange.fail(internal_error())

    async def _dispatch(self, exchange: Exchange) -> None:
        exchange.own_headers = [(b"x-request-id", minted_id().encode())]  # also for an id that is refused
        public_id, minted = request_id(exchange.headers)
        if not minted:
            exchange.own_headers = [(b"x-request-id", public_id.encode())]
        methods, argument = self._route(exchange.path)
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if method not in methods:
            allow = [(b"allow", ", ".join(sorted(methods)).encode())]
            error = RequestError(
                f"Not allowed to {exchange.method} {exchange.path[:256]}; allowed: {', '.join(sorted(methods))}.",
                status=405,
                code="method_not_allowed",
            )
            await exchange.fail(error_out(error), allow)
            return
        await methods[method](exchange, argument)

    def _route(self, path: str) -> tuple[dict[str, Endpoint], str]:
        if path in self._fixed:
            return self._fixed[path], ""
        for pattern, methods in self._patterns:
            if match := pattern.fullmatch(path):
                return methods, match[1]
        raise RequestError(f"Unknown request URL: {path[:256]}.", status=404, code="unknown_url")

    # Endpoints

    def _counted(self, answer: Endpoint) -> Endpoint:
        """Count what is refused for what it asks."""

        async def endpoint(exchange: Exchange, argument: str) -> None:
            try:
                await answer(exchange, argument)
            except RequestError:
                self.metrics.refused()
                raise

        return endpoint

    def _generation(self, route: Route) -> Endpoint:
        return self._counted(lambda exchange, _: self._generate(route, exchange))

    async def _generate(self, route: Route, exchange: Exchange) -> None:
        tenant, raw = self._door.tenant(exchange), await self._door.body(exchange)
        refuse_key(exchange.headers)
        caller = self._door.caller(exchange, tenant, self._settings.slo.get(route, SloDefaults()))
        await self._generator.answer(route, raw, caller, exchange)

    # Requests that are relayed pass by this application; it keeps their count

    def submitted(self, prepared: Relayed) -> None:
        """A relayed request is about to be submitted: its public id names it from now on."""
        entry = Remembered(prepared.tenant.id, (prepared.request.id,), prepared.trace.trace_id)
        self.remember(prepared.public_id, entry)

    def remember(self, public_id: str, entry: Remembered) -> None:
        """What a public id stands for, in whichever process it runs."""
        self._plain.index.remember(public_id, entry)

    def count(self, model: str, prompt_tokens: int, output_tokens: int) -> None:
        """A relayed answer is whole."""
        self.metrics.prompt_tokens(model, prompt_tokens)
        self.metrics.generated_tokens(model, output_tokens)

    def refused(self) -> None:
        """A relayed request was refused for what it asks."""
        self.metrics.refused()

    def _predicted(self, answer: Callable[[bytes, Caller], Awaitable[JsonObject]]) -> Endpoint:
        async def endpoint(exchange: Exchange, _: str) -> None:
            tenant = self._door.tenant(exchange)
            raw = await self._door.body(exchange)
            await _json(exchange, await answer(raw, self._door.caller(exchange, tenant, SloDefaults())))

        return endpoint

    async def _reset(self, exchange: Exchange, _: str) -> None:
        tenant = self._door.tenant(exchange)
        if self._door.keys.has_admin and not tenant.admin:
            raise RequestError("Only an admin key may reset the prefix cache.", status=403, code="admin_only")
        await _json(exchange, await self._plain.reset_prefix_cache())

    async def _trace(self, exchange: Exchange, _: str) -> None:
        if not self._door.tenant(exchange).admin:
            raise RequestError("Only an admin key may export a trace.", status=403, code="admin_only")
        text = exchange.query.get("seconds", ["60"])[-1]
        if not _SECONDS.fullmatch(text) or float(text) <= 0:
            message = f"`seconds` is {text[:64]!r}; it must be a positive number."
            raise RequestError(message, code="invalid_value", param="seconds")
        shape = exchange.query.get("format", ["chrome"])[-1]
        if shape == "chrome":
            await exchange.respond(200, await self._serving.trace(float(text), "chrome"))
        elif shape == "jsonl" or shape == "steps":
            lines = await self._serving.trace(float(text), shape)
            await exchange.respond(200, lines, content_type=b"application/jsonl")
        else:
            message = f"`format` is {shape[:64]!r}; it must be `chrome`, `jsonl` or `steps`."
            raise RequestError(message, code="invalid_value", param="format")

    async def _metrics(self, exchange: Exchange, _: str) -> None:
        await exchange.respond(200, self.metrics.render(), content_type=CONTENT_TYPE)

    async def _document(self, exchange: Exchange, _: str) -> None:
        await exchange.respond(200, openapi_json())

    def _drain(self, verb: Verb) -> Endpoint:
        return self._of_tenant_named(lambda replica, tenant: self._replicas.drain(replica, verb, tenant))

    async def _warm(self, exchange: Exchange, replica: str) -> None:
        tenant = self._door.tenant(exchange)
        await _json(exchange, self._replicas.warm(replica, await self._door.body(exchange), tenant))

    def _with_body(self, answer: Callable[[bytes], Awaitable[JsonObject]]) -> Endpoint:
        async def endpoint(exchange: Exchange, _: str) -> None:
            self._door.tenant(exchange)
            await _json(exchange, await answer(await self._door.body(exchange)))

        return endpoint

    def _known(self, answer: Callable[[str], JsonObject]) -> Endpoint:
        return self._of_tenant_named(lambda argument, _: answer(argument))

    def _of_tenant(self, answer: Callable[[Tenant], JsonObject]) -> Endpoint:
        return self._of_tenant_named(lambda _, tenant: answer(tenant))

    def _of_tenant_named(self, answer: Callable[[str, Tenant], JsonObject]) -> Endpoint:
        async def endpoint(exchange: Exchange, argument: str) -> None:
            await _json(exchange, answer(argument, self._door.tenant(exchange)))

        return endpoint


def _open(answer: Callable[[], JsonObject]) -> Endpoint:
    """Return an endpoint that needs no key."""

    async def endpoint(exchange: Exchange, _: str) -> None:
        await _json(exchange, answer())

    return endpoint


async def _json(exchange: Exchange, answer: JsonObject) -> None:
    await exchange.respond(200, msgspec.json.encode(answer))
