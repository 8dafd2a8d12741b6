"""Which machine of the control node sees which event."""

from headway.core.effects import Effect, Send
from headway.core.events import DrainAsked, Event, MessageArrived, PeerJoined, PeerLost, TimerFired, WarmAsked
from headway.core.ids import NodeId
from headway.core.messages import Holding, MigrationEnded, Prepare, Report, Reshaped, Stated
from headway.sched.admission.shares import Shares, Wholes
from headway.sched.control import Control
from headway.sched.fleet.migration import MigrationParams
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.shape_moves import SHAPES_TIMER, ShapeMoves


class ControlNode:
    """Exactly one: hears every report, moves requests, drains replicas, lends to the fronts of one budget."""

    def __init__(
        self,
        node: NodeId,
        migration: MigrationParams | None,
        shared: Wholes | None = None,
        shapes: ShapePoolParams | None = None,
    ) -> None:
        """`shared`: there are several fronts, and this is their budget. `shapes`: diffusion replicas may move between
        shape pools."""
        self._id = node
        self._out: list[Effect] = []
        self.shares = Shares(shared or Wholes(0, {}, None, 1))
        self.control = Control(migration, self._out)
        self.shapes = None if shapes is None else ShapeMoves(shapes, self._out)

    @property
    def wants_reports(self) -> bool:
        """A report may let something happen here."""
        return self.control.moves or self.shapes is not None

    @property
    def id(self) -> NodeId:
        """Its node id."""
        return self._id

    def handle(self, event: Event) -> list[Effect]:
        """Fold in one event and return what must be done."""
        control, shapes, at_ns = self.control, self.shapes, event.at_ns
        match event:
            case MessageArrived(src=src, message=message):
                match message:
                    case Report():
                        control.hear(message.report, at_ns)
                        if shapes is not None:
                            shapes.hear(message.report, at_ns)
                    case Reshaped() if shapes is not None:
                        shapes.ended(src, message, at_ns)
                    case Holding():
                        control.holding(src, message, at_ns)
                    case MigrationEnded():
                        control.ended(message, at_ns)
                    case Stated() if (share := self.shares.stated(src, message, at_ns)) is not None:
                        self._out.append(Send(src, share))
                    case _:
                        pass
            case DrainAsked():
                control.drain(event.node, event.is_draining, event.cause, at_ns)
            case WarmAsked():
                self._out.append(Send(event.node, Prepare(event.shapes, event.batches)))
            case PeerJoined():
                control.joined(event.node)
            case PeerLost():
                control.lost(event.node, event.incarnation, at_ns)
                self.shares.lost(event.node)
                if shapes is not None:
                    shapes.lost(event.node, event.incarnation, at_ns)
            case TimerFired(timer=timer) if timer == SHAPES_TIMER and shapes is not None:
                shapes.look(at_ns)
            case TimerFired(timer=timer) if timer.startswith("move:"):
                control.late(int(timer.partition(":")[2]), at_ns)
            case _:
                pass
        effects = list(self._out)
        self._out.clear()
        return effects

    def check_invariants(self) -> None:
        """Raise InvariantError when a move goes nowhere, or more is lent than there is. It owns no account."""
        self.control.check()
        self.shares.check()
