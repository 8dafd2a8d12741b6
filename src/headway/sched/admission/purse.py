"""A front's side of a shared budget: what it was lent, what it uses, and what it gives back (SPEC A8).

Stands where `Quotas` stands when a front is the only one. Device seconds are not shared: only the front of our own
engines spends any.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.core.effects import ErrorOut
from headway.core.ids import RequestId, TenantId
from headway.core.messages import Share, Stated
from headway.core.reports import RateLimit, RateLimits
from headway.core.units import NS_PER_MS, Ns
from headway.sched.admission.quota import Quota, Quotas
from headway.sched.admission.shares import IN_FLIGHT, Wholes, lacking

ASK_AGAIN_NS: Final = 20 * NS_PER_MS  # after a no; every request of a flood would ask otherwise


class _Denied(msgspec.Struct, frozen=True):
    until_ns: Ns
    amount: int
    retry_ms: int


class Purse:
    """`take`, then exactly one `settle` per request that took. Amounts by key of `Wholes`."""

    def __init__(self, wholes: Wholes) -> None:
        self._wholes = wholes
        device = {tenant: _device_only(quota) for tenant, quota in wholes.quotas.items()}
        self._device = Quotas(device, None if wholes.default is None else _device_only(wholes.default))
        self._held: dict[str, int] = {}  # of levels, floors not counted
        self._used: dict[str, int] = {}  # of levels
        self._credit: dict[str, int] = {}  # of rates; below 0: used beyond what was lent
        self._back: dict[str, int] = {}  # of rates, given back since the start
        self._busy: dict[str, None] = {}  # used since the last statement
        self._left: dict[str, tuple[int, Ns, Ns]] = {}  # of the whole: left, when full again, told when
        self._denied: dict[str, _Denied] = {}
        self._taken: dict[RequestId, tuple[TenantId, dict[str, int]]] = {}
        self._until_ns: Ns = 0
        self._spares: dict[str, int] = {}  # as `Wholes` has them
        self._stated = self._seen = 0
        self.owes = False  # others may wait for what it does not need

    # What is there

    def _has(self, key: str, at_ns: Ns) -> int:
        lives = at_ns < self._until_ns
        if self._wholes.level(key) is None:
            return self._credit.get(key, 0) if lives else min(0, self._credit.get(key, 0))
        held = self._held.get(key, 0) if lives else 0
        return self._wholes.floor(key) + held - self._used.get(key, 0)

    def asks(self, tenant: TenantId, tokens: int, at_ns: Ns) -> Sequence[tuple[str, int]]:
        """What to ask for before a request is taken; nothing when it is there, or when asking cannot help."""
        if self._is_too_large(tenant, tokens):
            return ()
        needs = self._wholes.needs(tenant, tokens)
        wants = lacking(needs, {key: self._has(key, at_ns) for key in needs})
        for key, amount in wants:
            denied = self._denied.get(key)
            if denied is not None and at_ns < denied.until_ns and amount >= denied.amount:
                return ()
        return wants

    def _is_too_large(self, tenant: TenantId, tokens: int) -> bool:
        quota = self._wholes.quota(tenant)
        return quota is not None and quota.tokens_per_min is not None and tokens > quota.tokens_per_min

    def take(self, request: RequestId, tenant: TenantId, tokens: int, device_us: int, at_ns: Ns) -> ErrorOut | None:
        """Take everything that a request needs; an error, and nothing taken, when something is not there."""
        needs = self._wholes.needs(tenant, tokens)
        who = f"request {request}: tenant {tenant}"
        if self._is_too_large(tenant, tokens):
            most = self._wholes.bucket(f"tokens/{tenant}").burst
            message = f"{who} asks for {tokens} tokens at once, the limit is {most} per minute; lower max_tokens"
            return ErrorOut(429, "rate_limited", message, None, waiting_helps=False)
        for key, amount in lacking(needs, {key: self._has(key, at_ns) for key in needs}):
            return self._refusal(who, key, amount)
        error = self._device.take(request, tenant, 0, device_us, at_ns)
        if error is not None:
            return error
        for key, amount in needs.items():
            account = self._used if self._wholes.level(key) is not None else self._credit
            account[key] = account.get(key, 0) + (amount if account is self._used else -amount)
            self._busy[key] = None
        self._taken[request] = tenant, needs
        return None

    def _refusal(self, who: str, key: str, amount: int) -> ErrorOut:
        denied, whole = self._denied.get(key), self._wholes.level(key)
        retry_ms = 1000 if denied is None else denied.retry_ms
        if key == IN_FLIGHT:
            message = f"{who}: gateway/in_flight has no room, front.in_flight_max = {whole} over all processes"
            return ErrorOut(429, "queue_full", message, retry_ms)
        what = key.partition("/")[0]
        message = (
            f"{who} has its {whole} requests open, over all processes"
            if whole is not None
            else f"{who} is over its {what} quota by {amount}, over all processes; retry after {retry_ms} ms"
        )
        return ErrorOut(429, "rate_limited", message, retry_ms)

    def settle(self, request: RequestId, tokens: int, device_us: int, at_ns: Ns) -> None:
        """The answer is over: count what it used, the rest can be used again. Unknown or settled: nothing happens."""
        taken = self._taken.pop(request, None)
        if taken is None:
            return
        self._device.settle(request, 0, device_us, at_ns)
        for key, amount in taken[1].items():
            if self._wholes.level(key) is not None:
                self._used[key] -= amount
                self.owes = self.owes or self._held.get(key, 0) - self._needed(key) > self._spare(key)
            elif key.startswith("tokens/"):
                self._credit[key] += amount - tokens
                self.owes = self.owes or self._credit[key] > self._spare(key)

    def _needed(self, key: str) -> int:
        """What it must hold of a level for what is open."""
        return max(0, self._used.get(key, 0) - self._wholes.floor(key))

    def _spare(self, key: str) -> int:
        found = self._spares.get(key)
        if found is None:
            found = self._spares[key] = self._wholes.spare(key)
        return found

    def limits(self, tenant: TenantId, at_ns: Ns) -> RateLimits:
        """What the tenant is told: of the whole, as it was when this front asked last."""
        quota = self._wholes.quota(tenant)
        if quota is None:
            return RateLimits()
        shown: list[RateLimit | None] = []
        for key, limit in (
            (f"requests/{tenant}", None if quota.requests_per_s is None else quota.requests_burst),
            (f"tokens/{tenant}", quota.tokens_per_min),
        ):
            left, reset_ns, told_ns = self._left.get(key, (limit, 0, at_ns))
            own = max(0, self._credit.get(key, 0))
            reset_ns = max(0, reset_ns - (at_ns - told_ns))
            shown.append(None if limit is None else RateLimit(limit, min(limit, (left or 0) + own), reset_ns))
        return RateLimits(*shown)

    def open(self, tenant: TenantId) -> int:
        """Requests of a tenant that are open here."""
        return sum(owner == tenant for owner, _ in self._taken.values())

    # To and from the lender

    @property
    def is_empty(self) -> bool:
        """Nothing is lent, and nothing is owed."""
        return not any(self._held.values()) and not any(self._credit.values())

    def state(self, wants: Sequence[tuple[str, int]], at_ns: Ns) -> Stated:
        """Say what it holds, give back what it did not need since the last time, and ask."""
        self.owes = False
        lives, asked = at_ns < self._until_ns, dict(wants)
        for key, held in self._held.items():
            spare = self._spare(key) if lives and key in self._busy else 0
            self._held[key] = held if key in asked else min(held, self._needed(key) + spare)
        back: list[tuple[str, int]] = []
        for key, credit in self._credit.items():
            spare = self._spare(key) if lives and key in self._busy else 0
            kept = max(0, credit) if key in asked else min(max(0, credit), spare)
            if credit != kept:
                self._credit[key] = kept
                self._back[key] = self._back.get(key, 0) + credit - kept
                back.append((key, self._back[key]))
        self._busy.clear()
        self._stated += 1
        return Stated(self._stated, self._seen, at_ns, tuple(self._held.items()), tuple(back), tuple(wants))

    def heard(self, share: Share, at_ns: Ns) -> None:
        """Take in a Share; an older one than was heard, or one past its time, is not used."""
        if share.number <= self._seen or share.until_ns <= at_ns:
            return
        self._seen, self._until_ns = share.number, share.until_ns
        for grant in share.grants:
            key = grant.key
            self._left[key] = grant.left, grant.reset_ns, at_ns
            if grant.wait_ns:
                retry_ms = -(-grant.wait_ns // NS_PER_MS)
                self._denied[key] = _Denied(at_ns + min(grant.wait_ns, ASK_AGAIN_NS), grant.asked, retry_ms)
            else:
                self._denied.pop(key, None)
            if grant.amount:
                account = self._held if self._wholes.level(key) is not None else self._credit
                account[key] = account.get(key, 0) + grant.amount
                self._busy[key] = None


def _device_only(quota: Quota) -> Quota:
    return Quota(gpu_seconds=quota.gpu_seconds)
