"""What an admission policy sees and returns."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from headway.core.decisions import Candidate
from headway.core.effects import ErrorOut
from headway.core.request import Request
from headway.core.units import Ns


class Load(msgspec.Struct, frozen=True):
    """The front's own state that admission may look at."""

    queued: int  # in the global queue, for the same model
    has_room: bool  # the best candidate would take the request now
    decode_seconds: float  # forecast from first to last token at the best candidate
    queue_seconds: float  # forecast wait in the global queue


class Verdict(msgspec.Struct, frozen=True):
    """What happens to an arriving request."""

    kind: Literal["admit", "queue", "reject"]
    reason: str
    error: ErrorOut | None = None


class AdmissionPolicy(Protocol):
    """Lets a request in, makes it wait, or refuses it."""

    def decide(self, request: Request, candidates: Sequence[Candidate], load: Load, at_ns: Ns) -> Verdict:
        """Return the verdict. Writes nothing."""
        ...
