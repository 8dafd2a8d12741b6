"""Decision records (SPEC L-3, L-5): what was chosen, against what, with which scores, and why."""

from typing import Literal

import msgspec

from headway.core.ids import ModelId, RequestId
from headway.core.units import Ns

Layer = Literal["step", "cache", "batch", "pool", "pd"]  # the layers of seed 002
Lessened = Literal["max_tokens", "steps", "model"]  # what admission may take away
ALTERNATIVES_MAX = 8


class Alternative(msgspec.Struct, frozen=True):
    """One candidate of a decision; lower `score` wins unless the reason says otherwise."""

    name: str
    score: float


class Decision(msgspec.Struct, frozen=True, tag=True):
    """A choice that changed something. `kind`: route, admit, order, chunk, preempt, handoff, migrate, scale..."""

    level: Layer
    at_ns: Ns
    kind: str
    chosen: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    request: RequestId | None = None


class Candidate(msgspec.Struct, frozen=True):
    """A replica, or a (prefill, decode) pair, with the seconds the request is forecast to need there."""

    replica: str
    seconds: float
    confidence: float  # [0, 1]
    decode: str | None = None
    reason: str = ""
    score: float | None = None  # of the routing policy; None: nobody scored it
    hit_tokens: int | None = None  # of the prompt, predicted to be cached there; None: nobody can tell
    pull_from: str | None = None  # a replica from which it should fetch the prompt's first `pull_tokens` before
    pull_tokens: int = 0

    @property
    def why(self) -> str:
        """Score and reason in words, of the chosen one only: to word every candidate costs as much as to rank it."""
        words = self.reason
        if self.score is not None:
            words = f"score {self.score:g}: {words}" if words else f"score {self.score:g}"
        return words if self.hit_tokens is None else f"{words}; {self.hit_tokens} prompt tokens predicted cached"


class Explained(msgspec.Struct, frozen=True):
    """How a router sees one replica for one request. `parts` add up to the score, where the policy can tell them."""

    replica: str
    place: int | None  # 0: the best; None: no candidate, see `reason`
    reason: str
    score: float | None = None
    ttft_s: float | None = None  # forecast; None: no rate is known
    confidence: float = 0.0
    parts: dict[str, float] = {}  # msgspec copies the default
    hit_tokens: int = 0
    has_room: bool = False
    requests: int = 0
    queued_tokens: int = 0
    queued_tokens_spread: int = 0
    kv_usage: float = 0.0
    prefill_tokens_per_s: float = 0.0
    age_s: float = 0.0
    source: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """Where a request would go now, and whether it would be let in."""

    model: ModelId
    policy: str
    prompt_tokens: int
    output_tokens: int  # to plan with
    verdict: str
    verdict_reason: str
    replicas: tuple[Explained, ...]  # candidates best first, then the others by id
    left: tuple[tuple[Lessened, int | str], ...] = ()  # what `degrade` takes away, and what stays of it
    output_tokens_likely: int | None = None  # what those with such a limit came to, or are forced to; None: not known
    unservable: str | None = None  # why no replica can ever run it; None: one can, as far as is known
