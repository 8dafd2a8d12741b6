"""What operators see of replicas and do with them: the front's view, what is not there, and drains."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from headway.core.events import DrainAsked, Event, WarmAsked
from headway.core.ids import ModelId, NodeId
from headway.core.reports import ReplicaFigures
from headway.core.request import DenoiseShape
from headway.core.units import Ns
from headway.live.board import Board, Known


class ReplicaDesk(msgspec.Struct, frozen=True):
    """Reads the front, asks the control node."""

    seen: Callable[[Ns], Sequence[ReplicaFigures]]  # by the front
    control: Callable[[Callable[[Ns], Event]], None]  # feeds the control node
    drained: Callable[[], Mapping[NodeId, str]]  # as the control node has it

    def replicas(self, board: Board, now_ns: Ns) -> tuple[ReplicaFigures, ...]:
        """Those that are there as the front sees them, and those of ours that are not."""
        present = {figures.replica: figures for figures in self.seen(now_ns)}
        for node, known in board.replicas.items():
            state: Literal["lost", "loading"] = "lost" if known.lost and known.phase is None else "loading"
            absent = ReplicaFigures(node, state, (known.model,), reason=board.doing(node, now_ns))
            present.setdefault(node, absent)
        drained = self.drained()
        found = [
            _with_own(msgspec.structs.replace(figures, is_drained=node in drained), board.replicas.get(node))
            for node, figures in present.items()
        ]
        return tuple(sorted(found, key=lambda figures: figures.replica))

    def able(self, board: Board, model: ModelId, now_ns: Ns) -> int:
        """How many may take work of a model. A breaker that is open now closes by itself and does not count."""
        found = [one for one in self.replicas(board, now_ns) if model in one.models]
        return sum(one.state == "ready" and one.is_up and not one.is_drained for one in found)

    def drain(self, replica: NodeId, is_draining: bool) -> None:
        """Take a replica out, or bring it back."""
        self.control(lambda at_ns: DrainAsked(at_ns, "an operator asked", replica, is_draining))

    def warm(self, replica: NodeId, shapes: tuple[DenoiseShape, ...]) -> None:
        """Have a replica run shapes while it has time."""
        self.control(lambda at_ns: WarmAsked(at_ns, "an operator asked", replica, shapes))

    def warm_again(self, replica: NodeId, shapes: tuple[DenoiseShape, ...], batches: tuple[int, ...]) -> None:
        """The same for what was warm before it started, up to so many pictures of a pass each."""
        self.control(lambda at_ns: WarmAsked(at_ns, "it was warm before", replica, shapes, batches))


def _with_own(figures: ReplicaFigures, known: Known | None) -> ReplicaFigures:
    """What only the process that started it knows of it."""
    if known is None:
        return figures
    settled = known.settled
    return msgspec.structs.replace(
        figures,
        garbage=known.garbage,
        settle_passes=None if settled is None else settled.passes,
        reserved_bytes=settled.held if settled is not None and settled.passes else None,
    )
