"""Terms that several routing policies share."""

from collections.abc import Sequence

from headway.core.draw import draw_below
from headway.core.ids import NodeId
from headway.core.request import DiffusionRequest, Request
from headway.sched.router.protocol import ReplicaView, Scored, by_score


def prompt_of(request: Request) -> int:
    """Return the tokens of its prompt; an image has none."""
    return 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens


def hashes_of(request: Request) -> tuple[bytes, ...]:
    """Return the chained hashes of its prompt's blocks."""
    return () if isinstance(request, DiffusionRequest) else request.block_hashes


def attempt_of(request: Request) -> int:
    """Return the attempt that every keyed draw contains."""
    return 0 if isinstance(request, DiffusionRequest) else request.attempts


def uncached(request: Request, replica: ReplicaView) -> int:
    """Return the prompt tokens that the replica would have to compute."""
    return max(0, prompt_of(request) - replica.hit_tokens)


def holder_of_most(replicas: Sequence[ReplicaView]) -> tuple[NodeId | None, int]:
    """Return who holds the longest beginning of the prompt, and how many tokens; the lowest id among equals."""
    if not replicas:
        return None, 0
    most = min(replicas, key=lambda replica: (-replica.hit_tokens, replica.id))
    return most.id, most.hit_tokens


def hit_share(request: Request, replica: ReplicaView) -> float:
    """Return matched over all full blocks of the prompt; the last token is always computed, so a hit rounds up."""
    if isinstance(request, DiffusionRequest) or not request.block_hashes or not request.block_tokens:
        return 0.0
    return min(1.0, -(-replica.hit_tokens // request.block_tokens) / len(request.block_hashes))


def best_first(scored: list[Scored], seed: int, request: Request) -> list[Scored]:
    """Sort by score; among equals for the first place a keyed draw decides, as the peer's random choice does."""
    ranked = by_score(scored)
    ties = sum(item.score == ranked[0].score for item in ranked) if ranked else 0
    if ties > 1:
        ranked.insert(0, ranked.pop(draw_below(seed, request.id, attempt_of(request), 0, ties)))
    return ranked


def chosen_first(chosen: NodeId, scored: list[Scored]) -> list[Scored]:
    """Sort by score, but put the chosen replica before all."""
    ranked = by_score(scored)
    return [item for item in ranked if item.replica == chosen] + [item for item in ranked if item.replica != chosen]


def rates(replicas: Sequence[ReplicaView]) -> dict[NodeId, float]:
    """Return prefill tokens per second; who has learned none is taken to be as fast as the slowest that has.

    With nobody's rate known all are 1: seconds are then tokens, in the same order.
    """
    slowest = min(
        (replica.prefill_tokens_per_s for replica in replicas if replica.prefill_tokens_per_s > 0), default=1.0
    )
    return {replica.id: replica.prefill_tokens_per_s or slowest for replica in replicas}
