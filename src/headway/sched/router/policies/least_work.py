"""Send each request to the replica that is done with it first, by estimated seconds of work."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns
from headway.sched.router.policies._terms import rates, uncached
from headway.sched.router.protocol import Learned, ReplicaView, Scored, by_score


class LeastWork:
    """Seconds of work that are there, and of the request itself on this replica's devices."""

    needs: ClassVar[frozenset[str]] = frozenset(
        {"work_ns", "own_work_ns", "denoise_cost", "queued_tokens", "prefill_tokens_per_s"}
    )
    sees: ClassVar[str] = "reported seconds of work, its own unseen dispatches, the replica's own cost of the request"
    good_at: ClassVar[str] = "pictures and videos in one pool, devices of unlike speed"
    blind_spot: ClassVar[str] = "decoding: of text it sees the prompts that wait and that of the request, in seconds"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by the end of the request; replicas that tell no work come last, by their requests."""
        if not isinstance(request, DiffusionRequest):
            rate = rates(replicas)
            return by_score([Scored(r.id, (r.queued_tokens + uncached(request, r)) / rate[r.id]) for r in replicas])
        known = [r for r in replicas if r.denoise_cost is not None]
        ranked = by_score([Scored(r.id, (r.work_ns + r.own_work_ns) / NS_PER_S) for r in known])
        last = ranked[-1].score if ranked else 0.0
        silent = [r for r in replicas if r.denoise_cost is None]
        return ranked + by_score([Scored(r.id, last + r.requests, "it tells no work") for r in silent])

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
