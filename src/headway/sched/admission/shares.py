"""One budget for several fronts: what each of them may use without asking (SPEC A8).

A front asks for what it lacks, and gets that with a little more, or nothing. What is lent is taken from the whole at
once, so that the fronts together never use more than the whole. A front says how much of a level it holds and what it
gives back of a rate, as totals with the last Share it has seen: a message that is lost or late costs room for a while,
and never lends anything twice.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headway.core.errors import InvariantError
from headway.core.ids import NodeId, TenantId
from headway.core.messages import Grant, Share, Stated
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.sched.admission.quota import Bucket, Quota

TTL_NS: Final = 5 * NS_PER_S  # of a share; a front that hears nothing opens nothing under it any more
IN_FLIGHT: Final = "in_flight"
SPARE_PARTS: Final = 16  # all fronts together get at most one of so many parts of a whole beyond what they need
FLOOR_PARTS: Final = 4  # so many parts of a level are lent; one is divided among the fronts for good
FULL_WAIT_NS: Final = 1000 * NS_PER_MS  # what clients are told to wait for room at a level


class Wholes(msgspec.Struct, frozen=True):
    """What is shared, by how many fronts. A key is `in_flight`, or `concurrent`, `requests` or `tokens` of a tenant."""

    in_flight_max: int
    quotas: Mapping[str, Quota]
    default: Quota | None
    fronts: int

    def quota(self, tenant: TenantId) -> Quota | None:
        """What a tenant may use."""
        return self.quotas.get(tenant, self.default)

    def level(self, key: str) -> int | None:
        """The size of a level; None: the key is a rate."""
        kind, _, tenant = key.partition("/")
        if kind == IN_FLIGHT:
            return self.in_flight_max
        quota = self.quota(TenantId(tenant))
        return None if quota is None or kind != "concurrent" else quota.concurrent

    def bucket(self, key: str) -> Bucket:
        """A new bucket for a rate, full. Raises InvariantError for a key without one."""
        kind, _, tenant = key.partition("/")
        quota = self.quota(TenantId(tenant))
        if quota is not None and kind == "requests" and quota.requests_per_s is not None:
            per_1000 = max(1, round(quota.requests_per_s * 1000))
            return Bucket(per_1000, 1000 * NS_PER_S, quota.requests_burst)
        if quota is not None and kind == "tokens" and quota.tokens_per_min is not None:
            return Bucket(quota.tokens_per_min, 60 * NS_PER_S, quota.tokens_per_min)
        raise InvariantError(f"nobody has a quota for {key}")

    def needs(self, tenant: TenantId, tokens: int) -> dict[str, int]:
        """What one request of so many tokens takes."""
        found, quota = {IN_FLIGHT: 1}, self.quota(tenant)
        if quota is not None:
            if quota.concurrent is not None:
                found[f"concurrent/{tenant}"] = 1
            if quota.requests_per_s is not None:
                found[f"requests/{tenant}"] = 1
            if quota.tokens_per_min is not None and tokens:
                found[f"tokens/{tenant}"] = tokens
        return found

    def floor(self, key: str) -> int:
        """What each front has of a level for good, also while it hears nothing."""
        return (self.level(key) or 0) // (FLOOR_PARTS * self.fronts)

    def spare(self, key: str) -> int:
        """How much a front may hold beyond what it needs, so that it need not ask for every request; 0 of small ones:
        what one front holds idle would be missed by the next request at another."""
        whole = self.level(key)
        if whole is None:
            whole = self.bucket(key).burst
        return whole // (SPARE_PARTS * self.fronts)


class _Lent(msgspec.Struct):
    """What one front has."""

    stated: int = 0  # number of its last statement
    number: int = 0  # of the last Share for it
    until_ns: Ns = 0
    held: dict[str, int] = {}  # msgspec copies the default
    unseen: list[tuple[int, Ns, str, int]] = []  # number, until when, key, amount: lent since, of levels
    back: dict[str, int] = {}

    def level(self, key: str) -> int:
        """The most that it may be using."""
        return self.held.get(key, 0) + sum(amount for _, _, lent, amount in self.unseen if lent == key)


class Shares:
    """The lender. Of each front that is lost, what it held returns when its share has expired."""

    def __init__(self, wholes: Wholes) -> None:
        self.wholes = wholes
        self._fronts: dict[NodeId, _Lent] = {}
        self._gone: list[_Lent] = []
        self._buckets: dict[str, Bucket] = {}

    def stated(self, src: NodeId, message: Stated, at_ns: Ns) -> Share | None:
        """Fold in what a front says, and answer; None for what came late or twice."""
        front = self._fronts.setdefault(src, _Lent())
        if message.number <= front.stated:
            return None
        front.stated = message.number
        # What it had not seen when it was too old to be taken is void: a Share is not used past its time.
        front.unseen = [e for e in front.unseen if e[0] > message.seen and e[1] > message.at_ns]
        front.held.update(message.held)
        for key, total in message.back:
            self._bucket(key).give_back(total - front.back.get(key, 0))
            front.back[key] = total
        self._gone = [gone for gone in self._gone if gone.until_ns > at_ns]
        wants = message.wants
        is_lent = all(self._wait_ns(key, amount, at_ns) == 0 for key, amount in wants)
        front.number += 1
        front.until_ns = max(front.until_ns, at_ns + TTL_NS)
        grants = tuple(self._grant(front, key, amount, at_ns, is_lent=is_lent) for key, amount in wants)
        return Share(front.number, message.number, front.until_ns, grants)

    def lost(self, src: NodeId) -> None:
        """A front is gone; the next of its name has nothing."""
        front = self._fronts.pop(src, None)
        if front is not None:
            self._gone.append(front)

    def lent(self, key: str, at_ns: Ns) -> int:
        """How much of a level is out, floors not counted."""
        gone = sum(front.level(key) for front in self._gone if front.until_ns > at_ns)
        return gone + sum(front.level(key) for front in self._fronts.values())

    def check(self) -> None:
        """Raise InvariantError when more of a level is out than there is."""
        fronts = self._fronts.values()
        for key in dict.fromkeys(
            key for front in fronts for key in (*front.held, *(entry[2] for entry in front.unseen))
        ):
            lent, most = sum(front.level(key) for front in fronts), self._lendable(key)
            if lent > most:
                raise InvariantError(f"{lent} of {key} are lent, there are {most}")

    def _lendable(self, key: str) -> int:
        return (self.wholes.level(key) or 0) - self.wholes.fronts * self.wholes.floor(key)

    def _bucket(self, key: str) -> Bucket:
        if key not in self._buckets:
            self._buckets[key] = self.wholes.bucket(key)
        return self._buckets[key]

    def _wait_ns(self, key: str, amount: int, at_ns: Ns) -> Ns:
        if self.wholes.level(key) is None:
            return self._bucket(key).wait_ns(amount, at_ns)
        return 0 if self.lent(key, at_ns) + amount <= self._lendable(key) else FULL_WAIT_NS

    def _grant(self, front: _Lent, key: str, amount: int, at_ns: Ns, *, is_lent: bool) -> Grant:
        """All that a request lacks, or nothing of it: what it took in vain others would miss."""
        wait_ns = self._wait_ns(key, amount, at_ns)
        if self.wholes.level(key) is None:
            bucket = self._bucket(key)
            given = max(amount, min(amount + self.wholes.spare(key), bucket.left(at_ns))) if is_lent else 0
            bucket.take(given, at_ns)
            return Grant(key, amount, given, wait_ns, bucket.left(at_ns), bucket.reset_ns(at_ns))
        left = self._lendable(key) - self.lent(key, at_ns)
        given = min(amount + self.wholes.spare(key), left) if is_lent else 0
        if given:
            front.unseen.append((front.number, front.until_ns, key, given))
        return Grant(key, amount, given, wait_ns, left - given)


def lacking(needs: Mapping[str, int], has: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    """What to ask for."""
    return tuple((key, amount - max(0, has[key])) for key, amount in needs.items() if amount > has[key])
