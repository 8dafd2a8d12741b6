"""Whether a running request should move, from which replica to which (SPEC C4; Llumnix, OSDI 2024).

First a draining replica gives what it runs. Then free memory that is scattered over the fleet is gathered where the
head of a queue does not find enough of it: it counts there as if it were in the batch (Llumnix' virtual usage). Last,
load is evened out.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from headway.core.ids import NodeId
from headway.core.messages import Held
from headway.core.units import NS_PER_S, Ns


class MigrationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a request moves from a loaded replica to a lighter one."""

    gain_tokens_min: Annotated[int, msgspec.Meta(ge=0)] = 512  # the source must hold so many tokens more
    gain_ratio_min: Annotated[float, msgspec.Meta(ge=0)] = 0.3  # and so much of its own load
    cooldown_s: Annotated[float, msgspec.Meta(ge=0)] = 0.02  # between two moves of a replica; a report apart
    moves_max: Annotated[int, msgspec.Meta(ge=1)] = 8  # at a time; a replica takes part in one
    spare_tokens: Annotated[int, msgspec.Meta(ge=0)] = 256  # that a move for a queue's head leaves free where it goes

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
    free_tokens: int = 0  # of KV
    blocked_tokens: int = 0  # that the head of its queue waits for

    @property
    def missing_tokens(self) -> int:
        """What the head of its queue lacks."""
        return max(0, self.blocked_tokens - self.free_tokens)

    @property
    def freeness(self) -> float:
        """Free tokens per request, the head of the queue counted as running; below 0 it does not fit."""
        return (self.free_tokens - self.blocked_tokens) / (self.running + (self.blocked_tokens > 0) or 1)


class Move(msgspec.Struct, frozen=True):
    """One request should go from `source` to `destination`."""

    source: NodeId
    destination: NodeId
    gain_tokens: int  # drain and balance: by which the source is heavier; room: what the head of its queue lacks
    reason: Literal["drain", "room", "balance"]
    room_tokens: int | None = None  # the most that the request may hold; None: unbounded


def choose_pair(loads: Sequence[ReplicaLoad], params: MigrationParams) -> Move | None:
    """Return the move that pays most, if any does."""
    ranked = sorted(loads, key=lambda load: (load.tokens, load.replica))
    targets = [load for load in ranked if not load.is_draining]
    if not targets:
        return None
    lightest = targets[0]
    for load in ranked:
        if load.is_draining and load.running:
            return Move(load.replica, lightest.replica, load.tokens, "drain")
    room = _make_room(targets, params)
    if room is not None:
        return room
    heaviest = targets[-1]
    gain = heaviest.tokens - lightest.tokens
    if heaviest.running < 2 or gain < params.gain_tokens_min or gain < params.gain_ratio_min * heaviest.tokens:
        return None
    return Move(heaviest.replica, lightest.replica, gain, "balance")


def _make_room(loads: Sequence[ReplicaLoad], params: MigrationParams) -> Move | None:
    """From the least free of those whose queue's head does not fit, to the freest."""
    blocked = [load for load in loads if load.missing_tokens and load.running]
    if not blocked:
        return None
    source = min(blocked, key=lambda load: (load.freeness, load.replica))
    others = [load for load in loads if load.replica != source.replica and not load.missing_tokens]
    if not others:
        return None
    target = max(others, key=lambda load: (load.free_tokens - load.blocked_tokens, load.replica))
    spare = target.free_tokens - target.blocked_tokens - params.spare_tokens
    return Move(source.replica, target.replica, source.missing_tokens, "room", spare) if spare > 0 else None


def choose_request(held: Sequence[Held], move: Move) -> Held | None:
    """Return the decoding request that should move.

    For room: the smallest that makes enough of it, else the largest that fits. Otherwise the one with the fewest tokens
    streamed: it has the longest to go and the least to copy.
    """
    decoding = [item for item in held if item.next_index > 0]
    if move.reason != "room" or move.room_tokens is None:
        return min(decoding, key=lambda item: (item.next_index, item.request), default=None)
    fitting = [item for item in decoding if 0 < item.tokens <= move.room_tokens]
    enough = [item for item in fitting if item.tokens >= move.gain_tokens]
    if enough:
        return min(enough, key=lambda item: (item.tokens, item.request))
    return max(fitting, key=lambda item: (item.tokens, item.request), default=None)
