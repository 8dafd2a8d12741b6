"""What owns the machines in a simulation: starts and stops replicas as the front's signals ask, after a cold start.

It decides nothing that live would not leave to Kubernetes or Ray as well: it polls the numbers of wanted replicas that
the front exports (`FrontNode.pool_figures`, SPEC A12), as a scaler polls a metrics page.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from headway.core.events import DrainAsked
from headway.core.ids import ModelId, NodeId
from headway.core.reports import PoolFigures
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.cost.coldstart import cold_start
from headway.sched.nodes import FrontNode
from headway.sim.driver import Machine, Simulation
from headway.sim.fleet import CONTROL
from headway.sim.pools import PoolParams
from headway.sim.starts import expect

Positive = Annotated[float, msgspec.Meta(gt=0)]


class OrchestratorParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the wanted numbers of replicas are followed."""

    poll_s: Positive = 5.0  # between two looks at what the front wants


class Scalable(Protocol):
    """A pool as the orchestrator sees it."""

    @property
    def replicas(self) -> Sequence[NodeId]: ...

    @property
    def cold_start_ns(self) -> Ns: ...

    def machine(self, place: int) -> Machine: ...


def start_ns(params: PoolParams, weight_bytes: float) -> Ns:
    """Return how long a replica of a pool takes from the decision until it serves."""
    if params.start_s is not None:
        return ns_from_s(params.start_s)
    return cold_start(weight_bytes, params.start, devices=params.devices).total_ns


def shape_ns(params: PoolParams) -> Ns:
    """Return what a replica that serves takes to be ready for one more shape: it compiles and captures."""
    if params.start_s is not None:
        return ns_from_s(params.start_s)
    phases = cold_start(0.0, params.start, devices=params.devices)
    return phases.compile_ns + phases.capture_ns


class Owned:
    """One pool: which of its replicas are held, since when, and for how long others were."""

    def __init__(self, pool: Scalable, params: PoolParams) -> None:
        self.pool, self.model, self.role = pool, params.model, params.role
        self.held: dict[NodeId, Ns] = dict.fromkeys(pool.replicas[: params.replicas], 0)  # since
        self.starting: dict[NodeId, None] = {}
        self.draining: dict[NodeId, None] = {}
        self.spent_ns: Ns = 0  # of those that are gone

    def held_ns(self, now_ns: Ns) -> Ns:
        """Time that replicas of the pool were held so far, cold starts included."""
        return self.spent_ns + sum(now_ns - since_ns for since_ns in self.held.values())

    @property
    def serving(self) -> int:
        """Replicas that serve or will, those that leave left out."""
        return len(self.held) - len(self.draining)


class Orchestrator:
    """Follows the front's wishes for every pool that has room to grow or shrink."""

    def __init__(
        self, sim: Simulation, params: OrchestratorParams, owned: Sequence[Owned], front: Callable[[], FrontNode]
    ) -> None:
        """`front`: as it lives now."""
        self.owned = owned
        self._sim, self._front = sim, front
        self._poll_ns = ns_from_s(params.poll_s)
        self._known = {node: None for pool in owned for node in pool.held}
        sim.at(self._poll_ns, self._poll)

    def _poll(self, at_ns: Ns) -> None:
        told = {(figures.model, figures.pool): figures for figures in self._front().pool_figures()}
        for pool in self.owned:
            self._retire(pool, at_ns)
            figures = told.get((pool.model, pool.role))
            if figures is not None:
                self._grow(pool, min(figures.wanted, len(pool.pool.replicas)), at_ns)
                self._shrink(pool, figures, at_ns)
        if not self._sim.is_served():
            self._sim.at(at_ns + self._poll_ns, self._poll)

    def _grow(self, pool: Owned, goal: int, at_ns: Ns) -> None:
        while pool.serving < goal:
            if pool.draining:  # nobody needs to be started while one can stay
                node = next(reversed(pool.draining))
                del pool.draining[node]
                self._sim.feed(CONTROL, DrainAsked(at_ns, "scale", node, is_draining=False))
                continue
            free = [node for node in pool.pool.replicas if node not in pool.held]
            if not free:
                return
            self._start(pool, free[0], at_ns)

    def _shrink(self, pool: Owned, figures: PoolFigures, at_ns: Ns) -> None:
        """Drain as many as the front says are too many of those it saw; it has not seen who starts or just came."""
        ready = [node for node in pool.held if node not in pool.draining and node not in pool.starting]
        spare = max(0, figures.replicas - figures.wanted)
        for node in ready[figures.wanted :][:spare]:
            pool.draining[node] = None
            self._sim.feed(CONTROL, DrainAsked(at_ns, "scale", node, is_draining=True))

    def _start(self, pool: Owned, node: NodeId, at_ns: Ns) -> None:
        pool.held[node] = at_ns
        pool.starting[node] = None

        def up(_: Ns) -> None:
            del pool.starting[node]
            if node in self._known:
                self._sim.feed(CONTROL, DrainAsked(self._sim.now_ns, "scale", node, is_draining=False))
                self._sim.restart(node)
            else:
                self._known[node] = None
                self._sim.add(node, pool.pool.machine(list(pool.pool.replicas).index(node)))

        expect(self._sim, node, ModelId(pool.model), f"a cold start of {s_from_ns(pool.pool.cold_start_ns):.1f} s")
        self._sim.at(at_ns + pool.pool.cold_start_ns, up)

    def _retire(self, pool: Owned, at_ns: Ns) -> None:
        """Stop who has drained: the front counts no request of it any more."""
        open_at = {figures.replica: figures.in_flight for figures in self._front().replica_figures(at_ns)}
        for node in list(pool.draining):
            if open_at.get(node, 0):
                continue
            if self._sim.lives[node].is_alive:
                self._sim.kill(node)
            del pool.draining[node]
            pool.spent_ns += at_ns - pool.held.pop(node)
