"""Whether one running request should move, from which replica to which (SPEC C4): a toy with threshold and cooldown."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from headway.core.ids import NodeId
from headway.core.messages import Held
from headway.core.units import NS_PER_S, Ns


class MigrationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a request moves from a loaded replica to a lighter one."""

    gain_tokens_min: Annotated[int, msgspec.Meta(ge=0)] = 512  # the source must hold so many tokens more
    gain_ratio_min: Annotated[float, msgspec.Meta(ge=0)] = 0.3  # and so much of its own load
    cooldown_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5  # between two moves

    @property
    def cooldown_ns(self) -> Ns:
        """Cooldown in nanoseconds."""
        return round(self.cooldown_s * NS_PER_S)


class ReplicaLoad(msgspec.Struct, frozen=True):
    """What a report says about one replica."""

    replica: NodeId
    tokens: int  # live context and queued prompts
    running: int
    is_draining: bool


class Move(msgspec.Struct, frozen=True):
    """One request should go from `source` to `destination`."""

    source: NodeId
    destination: NodeId
    gain_tokens: int
    reason: str


def choose_pair(loads: Sequence[ReplicaLoad], params: MigrationParams) -> Move | None:
    """Return the heaviest and the lightest replica, if moving pays; a draining one gives whatever it runs."""
    ranked = sorted(loads, key=lambda load: (load.tokens, load.replica))
    targets = [load for load in ranked if not load.is_draining]
    if not targets:
        return None
    lightest = targets[0]
    for load in ranked:
        if load.is_draining and load.running:
            return Move(load.replica, lightest.replica, load.tokens, "drain")
    heaviest = targets[-1]
    gain = heaviest.tokens - lightest.tokens
    if heaviest.running < 2 or gain < params.gain_tokens_min or gain < params.gain_ratio_min * heaviest.tokens:
        return None
    return Move(heaviest.replica, lightest.replica, gain, "balance")


def choose_request(held: Sequence[Held]) -> Held | None:
    """Return the decoding request with the fewest tokens streamed: it has the longest to go and the least to copy."""
    decoding = [item for item in held if item.next_index > 0]
    return min(decoding, key=lambda item: (item.next_index, item.request), default=None)
