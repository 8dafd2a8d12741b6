"""Send each request to the replica with the least work in tokens."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.protocol import Learned, ReplicaView, Scored, by_score


class LeastTokens:
    """Adds queued prefill, live KV and expected output."""

    needs: ClassVar[frozenset[str]] = frozenset({"queued_tokens", "kv_tokens", "output_tokens_expected"})
    sees: ClassVar[str] = "queued prefill, live KV and expected output, in tokens"
    good_at: ClassVar[str] = "mixed lengths"
    blind_spot: ClassVar[str] = "prefix hits: a cached prompt weighs as much as a new one"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Weights of the three sums, in prefill tokens per token."""

        queued: Annotated[float, msgspec.Meta(ge=0)] = 1.0
        kv: Annotated[float, msgspec.Meta(ge=0)] = 0.1
        output: Annotated[float, msgspec.Meta(ge=0)] = 1.0

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by weighted tokens."""
        p = self._params
        return by_score(
            [
                Scored(r.id, p.queued * r.queued_tokens + p.kv * r.kv_tokens + p.output * r.output_tokens_expected)
                for r in replicas
            ]
        )

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
