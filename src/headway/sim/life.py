"""A node in a simulation: how it is built, and each of its incarnations."""

from collections.abc import Callable

import msgspec

from headway.core.ids import TimerId
from headway.core.ports import Node
from headway.core.units import Ns
from headway.sched.nodes import ControlNode, FrontNode
from headway.sim.executor import SimEngine, SimExecutor
from headway.sim.painter import Painter
from headway.sim.run import Run
from headway.sim.truth import StepTruth


class Machine(msgspec.Struct, frozen=True):
    """How to build one node, and what it runs on."""

    build: Callable[[int], Node]  # from its incarnation
    engine: Callable[[], SimEngine] | None = None
    truth: StepTruth | None = None
    painter: Callable[[], Painter] | None = None  # of a diffusion replica


class Life:
    """One incarnation of a node."""

    def __init__(self, node: Node, incarnation: int) -> None:
        self.node, self.incarnation = node, incarnation
        self.executor: SimExecutor | None = None
        self.run: Run | None = None  # of steps that are no events
        self.is_alive = True
        self.moved: dict[TimerId, Ns] = {}  # when timers that replace earlier ones come
        self.hears = isinstance(node, FrontNode | ControlNode)
        self._busy_before_ns: Ns = 0  # of the lives before

    @property
    def busy_ns(self) -> Ns:
        """Device time of the node's steps so far, over all its lives."""
        return self._busy_before_ns + (0 if self.executor is None else self.executor.busy_ns)

    def follows(self, before: "Life") -> None:
        """The same node lived before."""
        self._busy_before_ns = before.busy_ns
