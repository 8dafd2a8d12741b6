"""What a tenant may use: requests per second, tokens per minute, requests at once, device seconds per period (SPEC A8).

Everything is integers of nanoseconds, tokens and microseconds. A request takes all of its shares or none; it gives
back what it did not use when it ends. The limit on requests at once is a lease that lasts to the end of the answer, not
a bucket that refills (sglang#31907).
"""

from collections.abc import Mapping
from typing import Annotated, Protocol

import msgspec

from headway.core.effects import ErrorOut
from headway.core.errors import ConfigError
from headway.core.ids import RequestId, TenantId
from headway.core.reports import RateLimit, RateLimits
from headway.core.units import NS_PER_MS, NS_PER_S, Ns, ns_from_s

Positive = Annotated[int, msgspec.Meta(ge=1)]


class GpuSeconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`limit` device seconds per `period_s`; the period begins with the first use after the last one ended."""

    limit: Annotated[float, msgspec.Meta(ge=0.001)]  # device seconds
    period_s: Annotated[float, msgspec.Meta(ge=0.001)] = 86400.0  # length of a period


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one tenant. Unset: none."""

    requests_per_s: Annotated[float, msgspec.Meta(ge=0.001, le=1e6)] | None = None  # on average
    requests_burst: Positive = 1  # requests that may come at once after a pause
    tokens_per_min: Positive | None = None  # prompt and output; a minute's worth may come at once
    concurrent: Positive | None = None  # requests that are open at the same time
    gpu_seconds: GpuSeconds | None = None

    def __post_init__(self) -> None:
        if self.requests_per_s is None and self.requests_burst != 1:
            raise ConfigError("requests_burst bounds nothing without requests_per_s")


class Allowance(Protocol):
    """What a front asks before a request may use anything: `Quotas`, or its part of what several fronts share."""

    def take(self, request: RequestId, tenant: TenantId, tokens: int, device_us: int, at_ns: Ns) -> ErrorOut | None: ...

    def settle(self, request: RequestId, tokens: int, device_us: int, at_ns: Ns) -> None: ...

    def limits(self, tenant: TenantId, at_ns: Ns) -> RateLimits: ...


class Bucket:
    """A rate with a burst, as the time at which it is full again (generic cell rate algorithm, ITU-T I.371)."""

    def __init__(self, amount: int, per_ns: Ns, burst: int) -> None:
        self._amount, self._per_ns, self.burst = amount, per_ns, burst
        self._full_ns: Ns = 0

    def _span(self, amount: int) -> Ns:
        return amount * self._per_ns // self._amount

    def wait_ns(self, amount: int, at_ns: Ns) -> Ns:
        """How long until `amount` is there; 0: now. What is above the burst must wait for a full bucket only."""
        owed = max(self._full_ns, at_ns) + self._span(min(amount, self.burst)) - self._span(self.burst)
        return max(0, owed - at_ns)

    def take(self, amount: int, at_ns: Ns) -> None:
        """Use it, also beyond what is there."""
        self._full_ns = max(self._full_ns, at_ns) + self._span(amount)

    def give_back(self, amount: int) -> None:
        """Undo a part of what was taken."""
        self._full_ns -= self._span(amount)

    def left(self, at_ns: Ns) -> int:
        """What may be taken now."""
        missing = max(0, self._full_ns - at_ns)
        return max(0, self.burst - -(-missing * self._amount // self._per_ns))

    def reset_ns(self, at_ns: Ns) -> Ns:
        """How long until it is full."""
        return max(0, self._full_ns - at_ns)


class _Taken(msgspec.Struct, frozen=True, gc=False):
    tenant: TenantId
    tokens: int
    device_us: int


class _Use:
    """One tenant's state."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        rate, tokens = quota.requests_per_s, quota.tokens_per_min
        per_m = None if rate is None else round(rate * 1e6)  # 0.0015 stays what it is
        self.requests = None if per_m is None else Bucket(per_m, 1_000_000 * NS_PER_S, quota.requests_burst)
        self.tokens = None if tokens is None else Bucket(tokens, 60 * NS_PER_S, tokens)
        self.open = 0
        self.period_ns: Ns | None = None  # when it began
        self.spent_us = 0  # device time used in the period
        self.reserved_us = 0  # by what is open

    def roll(self, at_ns: Ns) -> None:
        """End the period when its time is over. What is open counts in the one in which it ends."""
        gpu = self.quota.gpu_seconds
        if gpu is not None and self.period_ns is not None and at_ns >= self.period_ns + ns_from_s(gpu.period_s):
            self.period_ns, self.spent_us = None, 0


class Quotas:
    """The quotas of all tenants at one front. `take`, then exactly one `settle` per request that took."""

    def __init__(self, by_tenant: Mapping[str, Quota], default: Quota | None = None) -> None:
        self._by_tenant, self._default = by_tenant, default
        self._uses: dict[TenantId, _Use] = {}
        self._taken: dict[RequestId, _Taken] = {}

    def _use(self, tenant: TenantId) -> _Use | None:
        quota = self._by_tenant.get(tenant, self._default)
        if quota is None:
            return None
        if tenant not in self._uses:
            self._uses[tenant] = _Use(quota)
        return self._uses[tenant]

    def take(self, request: RequestId, tenant: TenantId, tokens: int, device_us: int, at_ns: Ns) -> ErrorOut | None:
        """Take every share that a request needs; an error, and nothing taken, when one is not there."""
        use = self._use(tenant)
        if use is None:
            return None
        use.roll(at_ns)
        error = self._refusal(use, f"request {request}: tenant {tenant}", tokens, device_us, at_ns)
        if error is not None:
            return error
        if use.requests is not None:
            use.requests.take(1, at_ns)
        if use.tokens is not None:
            use.tokens.take(tokens, at_ns)
        if use.quota.gpu_seconds is not None:
            use.period_ns = at_ns if use.period_ns is None else use.period_ns
            use.reserved_us += device_us
        use.open += 1
        self._taken[request] = _Taken(tenant, tokens, device_us)
        return None

    @staticmethod
    def _refusal(use: _Use, who: str, tokens: int, device_us: int, at_ns: Ns) -> ErrorOut | None:
        quota = use.quota
        if quota.concurrent is not None and use.open >= quota.concurrent:
            return _limited(f"{who} has {use.open} requests open, the limit is {quota.concurrent}", 1000)
        if quota.tokens_per_min is not None and tokens > quota.tokens_per_min:
            most = f"the limit is {quota.tokens_per_min} per minute; lower max_tokens"
            return _limited(f"{who} asks for {tokens} tokens at once, {most}", None)
        for name, bucket, amount, limit in (
            ("requests per second", use.requests, 1, quota.requests_per_s),
            ("tokens per minute", use.tokens, tokens, quota.tokens_per_min),
        ):
            retry_ms = 0 if bucket is None else -(-bucket.wait_ns(amount, at_ns) // NS_PER_MS)
            if retry_ms:
                return _limited(f"{who} is over {limit:g} {name}; retry after {retry_ms} ms", retry_ms)
        return _spent(use, quota.gpu_seconds, who, device_us, at_ns)

    def settle(self, request: RequestId, tokens: int, device_us: int, at_ns: Ns) -> None:
        """The answer is over: count what it used, give back the rest. Unknown or settled: nothing happens."""
        taken = self._taken.pop(request, None)
        if taken is None:
            return
        use = self._uses[taken.tenant]
        use.open -= 1
        if use.tokens is not None:
            if tokens > taken.tokens:
                use.tokens.take(tokens - taken.tokens, at_ns)  # an overdraft counts from now, however long it ran
            else:
                use.tokens.give_back(taken.tokens - tokens)
        if use.quota.gpu_seconds is not None:
            use.reserved_us -= taken.device_us
            use.spent_us += device_us

    def limits(self, tenant: TenantId, at_ns: Ns) -> RateLimits:
        """What the tenant is told."""
        use = self._use(tenant)
        if use is None:
            return RateLimits()
        shown = [
            None if bucket is None else RateLimit(bucket.burst, bucket.left(at_ns), bucket.reset_ns(at_ns))
            for bucket in (use.requests, use.tokens)
        ]
        return RateLimits(*shown)

    def open(self, tenant: TenantId) -> int:
        """Requests of a tenant that hold a lease."""
        use = self._uses.get(tenant)
        return 0 if use is None else use.open


def _limited(message: str, retry_ms: int | None) -> ErrorOut:
    """None: waiting does not help."""
    return ErrorOut(429, "rate_limited", message, retry_ms, waiting_helps=retry_ms is not None)


def _spent(use: _Use, gpu: GpuSeconds | None, who: str, device_us: int, at_ns: Ns) -> ErrorOut | None:
    """The period has no device time left for a request that is taken to need `device_us`, or has none at all."""
    if gpu is None:
        return None
    limit_us, in_use_us = round(gpu.limit * 1e6), use.spent_us + use.reserved_us
    if in_use_us < limit_us and in_use_us + device_us <= limit_us:
        return None
    message = (
        f"{who} has {in_use_us / 1e6:.3f} of {gpu.limit:g} device seconds in use in this period and needs "
        f"{device_us / 1e6:.3f}"
    )
    helps = device_us <= limit_us
    left_ns = ns_from_s(gpu.period_s) - (0 if use.period_ns is None else at_ns - use.period_ns)
    retry_ms = -(-left_ns // NS_PER_MS) if helps else None
    return ErrorOut(429, "quota_exceeded", message, retry_ms, waiting_helps=helps)
