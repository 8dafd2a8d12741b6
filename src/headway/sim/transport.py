"""Copies of KV blocks between simulated replicas; real content moves, so a wrong block shows in the tokens."""

from typing import TYPE_CHECKING

from headway.core.events import CopyArrived, CopyDone
from headway.core.ids import NodeId, TransferId
from headway.core.plans import CopyPlan

if TYPE_CHECKING:  # the driver owns the copies, and the copies schedule on the driver
    from headway.sim.driver import Life, Simulation


class Copies:
    """Open copies, by transfer. An aborted copy delivers nothing."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._open: dict[TransferId, list[tuple[Life, CopyPlan]]] = {}
        self.bytes_moved = 0

    def start(self, life: "Life", plan: CopyPlan) -> None:
        """Read the blocks now, deliver them when the link has carried them."""
        sim, executor = self._sim, life.executor
        assert executor is not None
        assert executor.engine is not None
        payload = executor.engine.read_blocks(plan.src_blocks)
        entry = (life, plan)
        self._open.setdefault(plan.transfer, []).append(entry)
        peer = sim.lives.get(plan.peer)

        def arrive(at_ns: int) -> None:
            if entry not in self._open.get(plan.transfer, ()):
                return
            self._open[plan.transfer].remove(entry)
            if peer is None or not peer.is_alive or not life.is_alive:
                return
            assert peer.executor is not None
            assert peer.executor.engine is not None
            peer.executor.engine.write_blocks(plan.dst_blocks, payload)
            self.bytes_moved += plan.bytes
            sim.feed(peer.node.id, CopyArrived(at_ns, "link", plan.transfer, plan.stage, plan.layer))
            sim.feed(life.node.id, CopyDone(at_ns, "link", plan.transfer, plan.stage, plan.layer))

        sim.at(sim.network.copied(life.node.id, plan.peer, plan.bytes, sim.now_ns), arrive)

    def abort(self, life: "Life", transfer: TransferId) -> None:
        """Stop; the source hears that no byte can arrive any more."""
        plans = [plan for owner, plan in self._open.pop(transfer, []) if owner is life]
        last = plans[-1] if plans else None
        stage, layer = (-1, -1) if last is None else (last.stage, last.layer)
        sim = self._sim
        sim.at(
            sim.now_ns, lambda at_ns: sim.feed(life.node.id, CopyDone(at_ns, "abort", transfer, stage, layer, False))
        )

    def forget(self, node: NodeId) -> None:
        """A node died: nothing of its copies arrives."""
        for transfer, entries in list(self._open.items()):
            left = [(life, plan) for life, plan in entries if node not in (life.node.id, plan.peer)]
            if left:
                self._open[transfer] = left
            else:
                del self._open[transfer]
