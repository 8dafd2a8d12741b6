"""From one request's head and body to the request of the ring, and to what the upstream gets of its head."""

import os
from typing import Final
from urllib.parse import quote

import msgspec

from headway.adapters.gateway.caller import Caller, Trace, checked_id, slo_of, trace_context
from headway.adapters.gateway.relay.body import RelayBody
from headway.adapters.gateway.relay.ports import RelayModel
from headway.adapters.gateway.relay.prefix import BLOCK_TOKENS, text_hashes
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import GatewaySettings, SloDefaults
from headway.adapters.gateway.tenants import KeyTable, Tenant
from headway.adapters.http1.heads import RequestHead, dropped_names
from headway.core.ids import RequestId
from headway.core.request import Slo, TextRequest
from headway.core.units import Ns

# Ours to write, credentials, or useless behind a relay. Without `accept-encoding` no upstream compresses: a compressed
# event stream is buffered, and hides its usage.
_NOT_FORWARDED: Final = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "authorization",
        "accept-encoding",
        "expect",
        "traceparent",
        "x-request-id",
        "x-api-key",
        "cookie",
    }
)
OPERATIONS: Final = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """One request that can be submitted."""

    request: TextRequest
    tenant: Tenant
    public_id: str
    trace: Trace
    forwarded: bytes
    own_lines: bytes  # header lines of ours in the answer
    authorization: bytes | None


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One whole request off the wire."""

    head: RequestHead
    body: bytes
    route: str
    received_ns: Ns
    arrived_ns: Ns


class RelayPreparer:
    """Checks who asks and what for, and estimates what it needs."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings, self._keys = settings, KeyTable(settings.auth)
        self._promises = {route: settings.slo.get(route, SloDefaults()) for route in OPERATIONS}
        self._promised = {route for route, slo in self._promises.items() if slo != SloDefaults()}

    def tenant(self, head: RequestHead) -> Tenant:
        """Who asks. Raises RequestError 401."""
        return self._keys.tenant(head.headers.get("authorization"))

    def prepare(self, arrival: Arrival, body: RelayBody, model: RelayModel, tenant: Tenant) -> Prepared:
        """Return the request. Raises RequestError."""
        headers = arrival.head.headers
        given_id = headers.get("x-request-id")
        trace, spare = _trace(headers)
        public_id = spare if given_id is None else checked_id(given_id, "x-request-id")
        slo, times = self._slo(arrival), (arrival.received_ns, arrival.arrived_ns)
        caller = Caller(tenant, public_id, given_id is None, trace, slo, *times)
        parent = trace.parent
        own_lines = f"x-request-id: {public_id}\r\ntraceparent: {parent}\r\n"
        authorization = headers.get("authorization")
        return Prepared(
            request=text_request(body, model, caller, OPERATIONS[arrival.route]),
            tenant=tenant,
            public_id=public_id,
            trace=trace,
            forwarded=(_kept_lines(arrival.head) + own_lines).encode("latin-1"),
            own_lines=own_lines.encode("latin-1") + (b"" if model.echo is None else echo_line(model.echo)),
            authorization=None if authorization is None else authorization.encode("latin-1"),
        )

    def _slo(self, arrival: Arrival) -> Slo:
        headers, route = arrival.head.headers, arrival.route
        if route not in self._promised and not any(name in headers for name in _SLO_HEADERS):
            return _NO_PROMISE
        return slo_of(headers, self._promises[route], arrival.received_ns)


def text_request(body: RelayBody, model: RelayModel, caller: Caller, operation: str) -> TextRequest:
    """Return the request of the ring. Raises RequestError for a priority that the tenant may not have."""
    tenant, priority = caller.tenant, body.priority or 0
    if tenant.priority_floor is not None and priority < tenant.priority_floor:
        raise invalid("priority", f"`priority` is {priority}; the floor of this tenant is {tenant.priority_floor}.")
    text = bytes(body.messages) or bytes(body.prompt)
    root = (model.model, model.lora, tenant.id, body.cache_salt, bytes(body.tools))
    limit = body.max_completion_tokens or body.max_tokens or model.max_tokens_default
    return TextRequest(
        id=RequestId(f"req-{caller.public_id}-{caller.trace.span_id}"),
        tenant=tenant.id,
        model=model.model,
        prompt_tokens=max(1, round(len(text) / model.bytes_per_token)),
        max_tokens=max(1, limit) * max(1, body.n or 1),
        arrived_ns=caller.body_ns,
        slo=caller.slo,
        urgency=-priority,
        block_hashes=text_hashes(root, text),
        block_tokens=BLOCK_TOKENS,
        tenant_weight=tenant.weight,
        trace=caller.trace.context(0, operation),
        session=body.session_id,
        lora=model.lora,
        allow_degrade=tuple(dict.fromkeys((*(body.allow_degrade or ()), *tenant.allow_degrade))),
        ignores_eos=bool(body.ignore_eos),
        is_stream=bool(body.stream),
        is_idempotent=body.temperature == 0 or body.seed is not None,
    )


_SLO_HEADERS: Final = ("x-slo-ttft-ms", "x-slo-tpot-ms", "x-slo-e2e-ms")
_NO_PROMISE: Final = Slo()


def _trace(headers: dict[str, str]) -> tuple[Trace, str]:
    """Return our span, and an id for a request that has none."""
    drawn = os.urandom(40).hex()  # one call of the system for all three
    if "traceparent" in headers:
        return trace_context(headers), drawn[:32]
    return Trace(drawn[32:64], drawn[64:], "00"), drawn[:32]


def _kept_lines(head: RequestHead) -> str:
    dropped = dropped_names(head.headers)
    return "".join(
        [f"{name}: {value}\r\n" for name, value in head.fields if name not in dropped and name not in _NOT_FORWARDED]
    )


def echo_line(name: str) -> bytes:
    """Return the header line that names the model that answers."""
    return b"x-headway-model: %b\r\n" % quote(name).encode()
