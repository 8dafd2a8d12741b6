"""Refuse nobody: what routing does alone."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headway.core.decisions import Candidate
from headway.core.reports import AdmissionFigures
from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.admission.protocol import Heard, Load, Verdict


class Open:
    """Lets everything in; the global queue is bounded by `front.in_flight_max` alone."""

    needs: ClassVar[frozenset[str]] = frozenset({"queued", "has_room"})
    sees: ClassVar[str] = "whether the best replica has room"
    good_at: ClassVar[str] = "comparing routers without admission, and batch work that has no deadline"
    blind_spot: ClassVar[str] = "overload: waits grow until every deadline is missed"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Nothing to set."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def decide(self, request: Request, candidates: Sequence[Candidate], load: Load, at_ns: Ns) -> Verdict:
        """Admit, or queue where nothing has room."""
        if load.queued or not load.has_room:
            return Verdict("queue", f"{load.queued} wait before it" if load.queued else "no replica has room")
        return Verdict("admit", "a replica has room")

    def observe(self, event: Heard) -> None:
        """It learns nothing."""

    def figures(self) -> Sequence[AdmissionFigures]:
        """It predicts nothing."""
        return ()
