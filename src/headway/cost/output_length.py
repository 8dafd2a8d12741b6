"""How many tokens a request will generate: a quantile of recent outputs of its like (SPEC A3).

Buckets go from fine to coarse: model, tenant and class of max_tokens; model and class; model. The finest one with
enough samples answers. A guess only: KV blocks and device bytes are guarded by their own accounts, whatever it says.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from math import ceil
from typing import Annotated

import msgspec

from headway.core.request import LanguageRequest

Key = tuple[str, str, int]  # model, tenant, class; "" and 0 where the bucket does not tell apart


class LengthParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prediction of output lengths from recent outputs of the same model, tenant and class of max_tokens."""

    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.7  # above the median: a long tail holds memory longest
    samples: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256  # outputs that a bucket remembers
    samples_min: Annotated[int, msgspec.Meta(ge=1)] = 30  # with fewer, a coarser bucket answers
    buckets_max: Annotated[int, msgspec.Meta(ge=3)] = 2048  # kept at a time; the least recently fed goes


class Bucket:
    """The last outputs, in the order they came and sorted."""

    def __init__(self, samples: int) -> None:
        self._most = samples
        self._ring = array("I")
        self._sorted = array("I")
        self._place = 0

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, tokens: int) -> None:
        """Remember one output; the oldest is forgotten. O(samples) bytes moved."""
        ring, ranked = self._ring, self._sorted
        if len(ring) < self._most:
            ring.append(tokens)
        else:
            del ranked[bisect_left(ranked, ring[self._place])]
            ring[self._place] = tokens
            self._place = (self._place + 1) % self._most
        ranked.insert(bisect_right(ranked, tokens), tokens)

    def quantile(self, share: float, above: int = 0) -> int | None:
        """The smallest output that `share` of those longer than `above` do not exceed; None when there is none."""
        first = bisect_right(self._sorted, above) if above else 0
        count = len(self._sorted) - first
        return self._sorted[first + max(0, ceil(share * count) - 1)] if count else None


class OutputLengths:
    """Bounded memory: `buckets_max` buckets of `samples` numbers, twice four bytes each."""

    def __init__(self, params: LengthParams) -> None:
        self._params = params
        self._buckets: OrderedDict[Key, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def learn(self, request: LanguageRequest, output_tokens: int) -> None:
        """An output came to its end. One that its client forced to its limit teaches nothing about others."""
        if output_tokens < 1 or request.ignores_eos:
            return
        for key in _keys(request):
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = Bucket(self._params.samples)
            self._buckets.move_to_end(key)
            bucket.add(output_tokens)
        while len(self._buckets) > self._params.buckets_max:
            self._buckets.popitem(last=False)

    def alike(self, request: LanguageRequest) -> int | None:
        """Output tokens to plan with, by outputs with its class of max_tokens alone; None while too few are known.

        Outputs with other limits bound it badly: those with a smaller one were cut there.
        """
        for key in _keys(request)[:2]:
            bucket = self._buckets.get(key)
            if bucket is not None and len(bucket) >= self._params.samples_min:
                value = bucket.quantile(self._params.quantile)
                return None if value is None else min(value, request.max_tokens)
        return None

    def estimate(self, request: LanguageRequest, generated: int = 0) -> int | None:
        """Output tokens to plan with, given that it has generated so many; None while nothing is known of its like.

        Longer than anything remembered: as much again. Never beyond max_tokens, where every output ends.
        """
        if request.ignores_eos:
            return None
        known = False
        for key in _keys(request):
            bucket = self._buckets.get(key)
            if bucket is None or len(bucket) < self._params.samples_min:
                continue
            known = True
            value = bucket.quantile(self._params.quantile, generated)
            if value is not None:
                return min(value, request.max_tokens)
        return min(2 * generated, request.max_tokens) if known else None


def _keys(request: LanguageRequest) -> Sequence[Key]:
    model, limit = request.model, request.max_tokens.bit_length()  # classes double in width
    return (model, request.tenant, limit), (model, "", limit), (model, "", 0)
