"""sglang-router's cache_aware: its own tree of what it sent where, behind a gate on the balance of the whole fleet."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from headway.core.ids import NodeId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns
from headway.sched.router.policies._terms import chosen_first, hashes_of
from headway.sched.router.protocol import Dispatched, Learned, Left, ReplicaView, Scored


class SglangCacheAware:
    """Imbalanced: the least loaded. Else the replica with the longest match if the match is long enough, else a miss.

    Published in sglang-router 0.3.2 and its successor SMG (model_gateway/src/policies/cache_aware.rs). Its tree is over
    the prompt's prefix blocks here, over characters there; where several replicas hold the deepest match, the one that
    used it last is taken, there an arbitrary one. Eviction by size is immediate here, every 30 s there.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"in_flight", "kv_usage", "block_hashes"})
    sees: ClassVar[str] = "this front's requests in flight, KV use, and its own tree of what it sent where"
    good_at: ClassVar[str] = "shared prefixes on a fleet that is nowhere near its limit"
    blind_spot: ClassVar[str] = "one hot replica switches locality off for the whole fleet, and requests weigh alike"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Defaults of SMG; those of sglang-router 0.3.2 in brackets."""

        imbalance_abs: Annotated[int, msgspec.Meta(ge=0)] = 32  # [64] requests between the most and the least, and
        imbalance_rel: Annotated[float, msgspec.Meta(ge=1)] = 1.1  # [1.5] times the least
        kv_usage_overload: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # anybody above: imbalanced; 1: off
        kv_usage_spread: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # between most and least used; 1: off
        match_min: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5  # [0.3] share of the prompt that must be exceeded
        miss: Literal["least_load", "smallest_tree"] = "least_load"  # [smallest_tree]
        blocks_max: Annotated[int, msgspec.Meta(ge=0)] = 1 << 20  # per replica; 2**26 characters, about 4 per token

    def __init__(self, params: Params) -> None:
        self._params = params
        self._tree: dict[bytes, dict[NodeId, int]] = {}  # block -> who was sent it, and in which dispatch last
        self._held: dict[NodeId, OrderedDict[bytes, None]] = {}  # least recently used first
        self._dispatches = 0

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Put the chosen replica before all, the others by requests in flight."""
        if not replicas:
            return []
        p, matched = self._params, None
        if self._is_imbalanced(replicas):
            kind = "imbalanced"
        else:
            share, holder = self._match(request)
            matched = holder if share > p.match_min else None
            kind = f"match {share:.2f}" if matched is not None else f"miss {share:.2f}"
        scored = [Scored(r.id, float(r.in_flight), f"{kind}; {r.in_flight} requests in flight") for r in replicas]
        if matched is None and kind != "imbalanced" and p.miss == "smallest_tree":
            matched = min((r.id for r in replicas), key=lambda name: (len(self._held.get(name, ())), name))
        least = min(scored, key=lambda item: (item.score, item.replica)).replica
        chosen = matched if matched is not None and any(r.id == matched for r in replicas) else least
        return chosen_first(chosen, scored)

    def _is_imbalanced(self, replicas: Sequence[ReplicaView]) -> bool:
        p = self._params
        most, least = max(r.in_flight for r in replicas), min(r.in_flight for r in replicas)
        fullest, emptiest = max(r.kv_usage for r in replicas), min(r.kv_usage for r in replicas)
        return (
            (most - least > p.imbalance_abs and most > p.imbalance_rel * least)
            or fullest > p.kv_usage_overload
            or fullest - emptiest > p.kv_usage_spread
        )

    def _match(self, request: Request) -> tuple[float, NodeId | None]:
        """Return the matched share of the prompt and who holds the deepest matched block."""
        if isinstance(request, DiffusionRequest) or not request.prompt_tokens:
            return 0.0, None
        depth, holders = 0, None
        for digest in request.block_hashes:
            found = self._tree.get(digest)
            if found is None:
                break
            depth, holders = depth + 1, found
        if holders is None:
            return 0.0, None
        share = min(1.0, depth * request.block_tokens / request.prompt_tokens)
        return share, max(holders, key=lambda name: (holders[name], name))

    def observe(self, event: Learned) -> None:
        """Insert what was sent, whichever way it was chosen; forget who left."""
        if isinstance(event, Dispatched):
            self._dispatches += 1
            held = self._held.setdefault(event.replica, OrderedDict())
            for digest in reversed(hashes_of(event.request)):  # a leaf goes before its parents
                self._tree.setdefault(digest, {})[event.replica] = self._dispatches
                held[digest] = None
                held.move_to_end(digest)
            while len(held) > self._params.blocks_max:
                self._forget(held.popitem(last=False)[0], event.replica)
        elif isinstance(event, Left):
            for digest in self._held.pop(event.replica, ()):
                self._forget(digest, event.replica)

    def _forget(self, digest: bytes, replica: NodeId) -> None:
        holders = self._tree[digest]
        del holders[replica]
        if not holders:
            del self._tree[digest]
