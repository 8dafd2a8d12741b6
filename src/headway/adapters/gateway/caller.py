"""What the headers say: request id, trace context, SLO; and which internal requests a client's id names."""

import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from headway.adapters.gateway.settings import SloDefaults
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import RequestError
from headway.core.ids import RequestId, TenantId
from headway.core.request import Slo, TraceContext
from headway.core.units import Ns, ns_from_ms

ID_CHARS_MAX: Final = 256
SDK_KEY: Final = "stainless-"  # how the keys begin that OpenAI's SDKs make
_ID: Final = re.compile(rf"[!-~]{{1,{ID_CHARS_MAX}}}")
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class Trace(msgspec.Struct, frozen=True):
    """Our span in the client's trace (W3C trace context)."""

    trace_id: str
    span_id: str
    flags: str
    parent_id: str | None = None  # the client's span; None: the trace begins here

    @property
    def parent(self) -> str:
        """The `traceparent` that names our span."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    def context(self, index: int, operation: str) -> TraceContext:
        """Return the span of sequence `index`: the first is the HTTP request's own, the others are its children."""
        # A trace that begins here is ours to record; the flags of a client's trace are its wish.
        is_sampled = self.parent_id is None or bool(int(self.flags, 16) & 1)
        if index == 0:
            return TraceContext(self.trace_id, self.span_id, self.parent_id, is_sampled, operation)
        return TraceContext(self.trace_id, secrets.token_hex(8), self.span_id, is_sampled, operation)


class Caller(msgspec.Struct, frozen=True):
    """One HTTP request's identity and promises."""

    tenant: Tenant
    public_id: str
    minted: bool  # the client named none
    trace: Trace
    slo: Slo
    received_ns: Ns
    body_ns: Ns


def again(caller: Caller) -> Caller:
    """The same caller with a span of its own, for a request that is submitted once more."""
    trace = msgspec.structs.replace(caller.trace, span_id=secrets.token_hex(8))
    return msgspec.structs.replace(caller, trace=trace)


def minted_id() -> str:
    """Return an id for a request whose client named none."""
    return secrets.token_hex(16)


def request_id(headers: Mapping[str, str]) -> tuple[str, bool]:
    """Return the client's `x-request-id`, or a new id and True. Raises RequestError for one that cannot be echoed."""
    given = headers.get("x-request-id")
    if given is None:
        return minted_id(), True
    return checked_id(given, "x-request-id"), False


def checked_id(given: str, param: str, most: int = ID_CHARS_MAX) -> str:
    """Return an id that can stand in a header and a path. Raises RequestError."""
    if _ID.fullmatch(given) and len(given) <= most:
        return given
    raise RequestError(
        f"`{param}` must be 1 to {most} printable ASCII characters without spaces.",
        code="invalid_value",
        param=param,
    )


def refuse_key(headers: Mapping[str, str]) -> None:
    """Raises RequestError for an `idempotency-key` where the answer is not kept: whoever relies on it must know.

    OpenAI's SDKs can make a key for each call, for retries of their own; no program has asked for it, and it passes.
    """
    if not headers.get("idempotency-key", SDK_KEY).startswith(SDK_KEY):
        raise RequestError(
            "`idempotency-key` is kept for pictures, videos and jobs. Text that is sent again runs again, and is "
            "counted again: leave the header out.",
            code="unsupported_parameter",
            param="idempotency-key",
        )


def trace_context(headers: Mapping[str, str]) -> Trace:
    """Continue the client's trace with a span of ours; a missing or broken `traceparent` starts anew (W3C)."""
    match = _TRACEPARENT.fullmatch(headers.get("traceparent", "").strip())
    if match is None:
        return Trace(secrets.token_hex(16), secrets.token_hex(8), "00")
    return Trace(match[1], secrets.token_hex(8), match[3], match[2])


def slo_of(headers: Mapping[str, str], defaults: SloDefaults, received_ns: Ns) -> Slo:
    """Return the SLO as absolute deadlines: the headers, else the route's defaults. Raises RequestError."""
    ttft = _promise(headers, "x-slo-ttft-ms", defaults.ttft_ms)
    tpot = _promise(headers, "x-slo-tpot-ms", defaults.tpot_ms)
    e2e = _promise(headers, "x-slo-e2e-ms", defaults.e2e_ms)
    return Slo(
        ttft_deadline_ns=None if ttft is None else received_ns + ttft,
        tpot_ns=tpot,
        e2e_deadline_ns=None if e2e is None else received_ns + e2e,
    )


def _promise(headers: Mapping[str, str], name: str, default_ms: float | None) -> Ns | None:
    given = headers.get(name)
    if given is None:
        return None if default_ms is None else ns_from_ms(default_ms)
    try:
        ms = float(given)
    except ValueError:
        ms = -1.0
    if not 0 < ms <= 1e12:
        raise RequestError(f"`{name}` must be a positive number of milliseconds.", code="invalid_value", param=name)
    return ns_from_ms(ms)


class Remembered(msgspec.Struct, frozen=True):
    """What one public id stands for."""

    tenant: TenantId
    requests: tuple[RequestId, ...]
    trace_id: str


class RequestIndex:
    """Public id to internal requests, the latest `capacity` of them. A repeated id names its latest use per tenant."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[str, TenantId], Remembered] = OrderedDict()
        self._latest: dict[str, TenantId] = {}

    def remember(self, public_id: str, entry: Remembered) -> None:
        """Keep an entry; the oldest goes when the table is full."""
        self._entries.pop((public_id, entry.tenant), None)
        self._entries[public_id, entry.tenant] = entry
        self._latest[public_id] = entry.tenant
        while len(self._entries) > self._capacity:
            (old, tenant), _ = self._entries.popitem(last=False)
            if self._latest.get(old) == tenant:
                del self._latest[old]

    def find(self, public_id: str, tenant: Tenant) -> Remembered | None:
        """Return the tenant's entry; an admin finds everybody's, its own first."""
        own = self._entries.get((public_id, tenant.id))
        if own is not None or not tenant.admin or public_id not in self._latest:
            return own
        return self._entries.get((public_id, self._latest[public_id]))
