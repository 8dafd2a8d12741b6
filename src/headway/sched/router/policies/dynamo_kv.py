"""Dynamo's KV router: prefill and decode cost in KV blocks (ai-dynamo/dynamo, lib/kv-router, default selector)."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.draw import draw_unit
from headway.core.ids import NodeId, RequestId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns
from headway.sched.router.policies._terms import attempt_of, best_first, chosen_first, hashes_of, prompt_of
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left, ReplicaView, Scored


class _Open(msgspec.Struct):
    """One unfinished dispatch of this front."""

    hashes: tuple[bytes, ...]
    tail_blocks: int  # of the prompt, that have no hash
    prefill_tokens: int  # until its first token


class _Load(msgspec.Struct):
    """What this front has running at one replica. Equal blocks of several requests count once."""

    blocks: dict[bytes, int]  # of running prompts -> how many of them hold it
    tail_blocks: int = 0
    prefill_tokens: int = 0
    requests: int = 0

    def decode_blocks(self, hashes: tuple[bytes, ...], tail_blocks: int) -> int:
        """Blocks with one more request. O(log blocks): a block is held only with all blocks before it."""
        shared = bisect_left(hashes, True, key=lambda digest: digest not in self.blocks)
        return len(self.blocks) + self.tail_blocks + len(hashes) - shared + tail_blocks


_IDLE = _Load({})


class DynamoKv:
    """argmin prefill_scale x max(active prefill + prompt - credit, 0) + decode blocks + w x active requests.

    All in blocks; active means this front's own unfinished dispatches, as Dynamo tracks them; decode blocks include
    those that the request would add; credit = c x cached blocks, with c = credit / (1 + decay x prefill above the least
    one / blocks of the request). Replicas here have no host or disk tier, so those credits have nothing to count. Equal
    costs are drawn; a temperature draws by softmax over the costs divided by their range.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hit_tokens", "block_hashes"})
    sees: ClassVar[str] = "predicted prefix hits and the prefill and decode blocks of its own unfinished requests"
    good_at: ClassVar[str] = "locality against load in one unit, with shared prefixes counted once"
    blind_spot: ClassVar[str] = "other fronts, waiting time and speed: a block costs the same on every replica"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Published defaults."""

        prefill_scale: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # decode blocks that one prefill block is worth
        overlap_credit: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # of a cached block
        credit_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # how fast a busy replica loses credit; 0: never
        request_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # blocks that an active request costs beside its own
        temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # 0: the cheapest
        block_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16  # of a request that nobody hashed
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0  # of all draws

    def __init__(self, params: Params) -> None:
        self._params = params
        self._open: dict[tuple[RequestId, NodeId], _Open] = {}
        self._loads: dict[NodeId, _Load] = {}

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by cost, the drawn one first."""
        p, block, prompt = self._params, self._block(request), prompt_of(request)
        hashes, tail = hashes_of(request), self._tail(request)
        least = min((self._load(r.id).prefill_tokens for r in replicas), default=0)
        scored = []
        for r in replicas:
            load = self._load(r.id)
            above = (load.prefill_tokens - least) / block / max(1, math.ceil(prompt / block))
            credit = p.overlap_credit / (1.0 + p.credit_decay * above) * -(-r.hit_tokens // block)
            prefill = max((load.prefill_tokens + prompt) / block - credit, 0.0)
            decode = load.decode_blocks(hashes, tail)
            cost = p.prefill_scale * prefill + decode + p.request_weight * load.requests
            scored.append(Scored(r.id, cost, f"prefill {prefill:.1f}, decode {decode} blocks"))
        if p.temperature == 0 or not scored:
            return best_first(scored, p.seed, request)
        return chosen_first(self._sampled(scored, request), scored)

    def _sampled(self, scored: list[Scored], request: Request) -> NodeId:
        lowest = min(item.score for item in scored)
        spread = max(item.score for item in scored) - lowest
        ordered = sorted(scored, key=lambda item: item.replica)
        scale = spread * self._params.temperature or 1.0  # all equal: all weights are 1
        weights = [math.exp((lowest - item.score) / scale) for item in ordered]
        left = draw_unit(self._params.seed, request.id, attempt_of(request), 0) * math.fsum(weights)
        for item, weight in zip(ordered, weights, strict=True):
            left -= weight
            if left < 0:
                return item.replica
        return ordered[-1].replica

    def _block(self, request: Request) -> int:
        return (
            self._params.block_tokens
            if isinstance(request, DiffusionRequest)
            else (request.block_tokens or self._params.block_tokens)
        )

    def _tail(self, request: Request) -> int:
        return max(0, math.ceil(prompt_of(request) / self._block(request)) - len(hashes_of(request)))

    def _load(self, replica: NodeId) -> _Load:
        return self._loads.get(replica, _IDLE)

    def observe(self, event: Learned) -> None:
        """Count what runs where."""
        match event:
            case Dispatched():
                self._begin(event)
            case FirstToken():
                entry = self._open.get((event.request, event.replica))
                if entry is not None:
                    self._loads[event.replica].prefill_tokens -= entry.prefill_tokens
                    entry.prefill_tokens = 0
            case Ended():
                self._end(event.request, event.replica)
            case Left():
                self._loads.pop(event.replica, None)
                for key in [key for key in self._open if key[1] == event.replica]:
                    del self._open[key]

    def _begin(self, event: Dispatched) -> None:
        request = event.request
        self._end(request.id, event.replica)
        uncached = max(0, prompt_of(request) - event.hit_tokens)
        entry = _Open(hashes_of(request), self._tail(request), uncached)
        self._open[request.id, event.replica] = entry
        load = self._loads.setdefault(event.replica, _Load({}))
        load.requests += 1
        load.prefill_tokens += uncached
        load.tail_blocks += entry.tail_blocks
        for digest in entry.hashes:
            load.blocks[digest] = load.blocks.get(digest, 0) + 1

    def _end(self, request: RequestId, replica: NodeId) -> None:
        entry = self._open.pop((request, replica), None)
        if entry is None:
            return
        load = self._loads[replica]
        load.requests -= 1
        load.prefill_tokens -= entry.prefill_tokens
        load.tail_blocks -= entry.tail_blocks
        for digest in entry.hashes:
            load.blocks[digest] -= 1
            if not load.blocks[digest]:
                del load.blocks[digest]
