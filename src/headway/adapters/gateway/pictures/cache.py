"""Answers to `deterministic` requests: the same request of the same tenant is answered again without device time."""

from collections import OrderedDict

import msgspec

from headway.adapters.gateway.pictures.answers import ImageAnswer
from headway.core.ids import TenantId


class ResultCache:
    """The latest answers, at most `bytes_max` of pictures; the least recently used go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[TenantId, bytes], ImageAnswer] = OrderedDict()
        self.bytes = 0

    def get(self, tenant: TenantId, digest: bytes) -> ImageAnswer | None:
        """Return the answer to that request, as costing nothing; None where it is not kept."""
        answer = self._kept.get((tenant, digest))
        if answer is None:
            return None
        self._kept.move_to_end((tenant, digest))
        free = dict.fromkeys(answer.stage_seconds, 0.0)
        return msgspec.structs.replace(answer, gpu_seconds=0.0, price_usd=0.0, stage_seconds=free, cached=True)

    def put(self, tenant: TenantId, digest: bytes, answer: ImageAnswer) -> None:
        """Keep an answer; one that is larger than all room is not."""
        size = _size(answer)
        if size > self._bytes_max:
            return
        before = self._kept.pop((tenant, digest), None)
        self.bytes += size - (0 if before is None else _size(before))
        self._kept[tenant, digest] = answer
        while self.bytes > self._bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= _size(oldest)


def _size(answer: ImageAnswer) -> int:
    return sum(len(one.b64_json or b"") for one in answer.data)
