"""A replica that will serve again, or for the first time: fronts may wait for it while it starts (SPEC A11)."""

from headway.core.events import PeerStarting
from headway.core.ids import ModelId, NodeId
from headway.core.units import Ns
from headway.sim.driver import Simulation


def expect(sim: Simulation, node: NodeId, model: ModelId, doing: str) -> None:
    """The next incarnation of a node starts now; fronts hear of that when they notice that the one before is gone."""
    incarnation = sim.lives[node].incarnation + 1 if node in sim.lives else 1

    def tell(now_ns: Ns) -> None:
        for peer, other in list(sim.lives.items()):
            if other.hears:
                at_ns = sim.network.arrival(node, peer, now_ns)
                sim.schedule(at_ns, sim.happen, (other, PeerStarting(at_ns, doing, node, incarnation, model)))

    sim.at(sim.now_ns + sim.params.network.detect_ns, tell)
