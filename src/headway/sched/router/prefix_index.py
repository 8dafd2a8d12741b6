"""Which replica is taken to hold which prefix: what was dispatched there, in blocks, bounded."""

from collections import OrderedDict
from typing import Annotated

import msgspec

from headway.core.ids import NodeId
from headway.core.reports import ReplicaReport
from headway.core.request import DiffusionRequest, Request


class IndexParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`block_tokens_min`: coarser blocks than the engine's keep the index small (GAIE#2878)."""

    block_tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 64  # tokens that one entry stands for, at least
    entries_max: Annotated[int, msgspec.Meta(ge=0)] = 200_000  # per replica; the least recently used go


class PrefixIndex:
    """Chained hashes per replica, least recently used first."""

    def __init__(self, params: IndexParams) -> None:
        self._params = params
        self._held: dict[NodeId, OrderedDict[bytes, None]] = {}

    def hits(self, request: Request, node: NodeId) -> int:
        """Prompt tokens of the request that are predicted to be cached at `node`. O(blocks)."""
        held = self._held.get(node)
        if held is None or isinstance(request, DiffusionRequest) or not request.block_tokens:
            return 0
        stride = self._stride(request.block_tokens)
        hashes = request.block_hashes
        count = 0
        for place in range(stride - 1, len(hashes), stride):
            if hashes[place] not in held:
                break
            count = place + 1
        return min(count * request.block_tokens, max(0, request.prompt_tokens - 1))

    def dispatched(self, request: Request, node: NodeId) -> None:
        """The request goes to `node`: its prompt will be cached there."""
        if isinstance(request, DiffusionRequest) or not request.block_tokens:
            return
        held = self._held.setdefault(node, OrderedDict())
        stride = self._stride(request.block_tokens)
        for digest in reversed(request.block_hashes[stride - 1 :: stride]):  # a leaf goes before its parents
            held[digest] = None
            held.move_to_end(digest)
        while len(held) > self._params.entries_max:
            held.popitem(last=False)

    def heard(self, report: ReplicaReport) -> None:
        """Correct the guess by what the replica tells of its cache."""

    def left(self, node: NodeId) -> None:
        """The replica is gone, and its cache."""
        self._held.pop(node, None)

    def _stride(self, block_tokens: int) -> int:
        return -(-self._params.block_tokens_min // block_tokens)
