"""All-gathers of simulated groups: complete when every member spoke, given up at the deadline."""

from typing import TYPE_CHECKING

from headway.core.effects import Propose
from headway.core.events import PeerLost, Proposal, Proposals
from headway.core.ids import GroupId, NodeId

if TYPE_CHECKING:  # the driver owns the groups, and the groups schedule on the driver
    from headway.sim.driver import Life, Simulation


class Gather:
    """The all-gather of one group: complete when every member spoke."""

    def __init__(self, group: GroupId, members: tuple[NodeId, ...]) -> None:
        self.group, self.members = group, members
        self._open: dict[int, dict[NodeId, Proposal]] = {}

    def propose(self, node: NodeId, step: int, proposal: Proposal) -> dict[NodeId, Proposal] | None:
        """Take one proposal; return all, in member order, once complete."""
        heard = self._open.setdefault(step, {})
        heard[node] = proposal
        if len(heard) < len(self.members):
            return None
        del self._open[step]
        return {member: heard[member] for member in self.members}

    def missing(self, step: int) -> list[NodeId]:
        """Members that have not spoken for a step that somebody opened; the step is then given up."""
        heard = self._open.pop(step, None)
        return [] if heard is None else [member for member in self.members if member not in heard]


class Groups:
    """The all-gathers of a simulation."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._gathers: dict[GroupId, Gather] = {}

    def join(self, group: GroupId, members: tuple[NodeId, ...]) -> None:
        """Join ranks to a group."""
        self._gathers[group] = Gather(group, members)

    def propose(self, life: "Life", effect: Propose) -> None:
        """Hand in a proposal; the last one of a step lets everybody know all."""
        sim, gather, step = self._sim, self._gathers[effect.group], effect.step
        complete = gather.propose(life.node.id, step, effect.proposal)
        if complete is None:
            # As of now: a member that dies and comes back meanwhile is not lost to its group again.
            incarnations = {member: sim.lives[member].incarnation for member in gather.members}
            sim.at(effect.deadline_ns, lambda _: self._expire(gather, step, incarnations))
            return
        for member in gather.members:
            sim.promise(
                sim.lives[member],
                sim.now_ns + sim.params.network.gather_ns,
                lambda at_ns: Proposals(at_ns, "gather", gather.group, step, complete),
            )

    def _expire(self, gather: Gather, step: int, incarnations: dict[NodeId, int]) -> None:
        sim = self._sim
        for silent in gather.missing(step):
            for member in gather.members:
                if member != silent and sim.lives[member].is_alive:
                    event = PeerLost(sim.now_ns, "proposal missing", silent, incarnations[silent])
                    sim.turn(sim.lives[member], event)
