"""One rank's view of its group: who is there, which step comes next, and what this rank has proposed for it.

Steps are numbered within a generation, the sum of the members' incarnations: a rank that comes back starts with the
survivors at step 0 of the next generation, and no proposal of the old one can be mistaken for one of the new.
"""

from typing import Final

import msgspec

from headway.core.effects import Propose
from headway.core.errors import ConfigError
from headway.core.events import Proposal, Proposals
from headway.core.ids import GroupId, NodeId
from headway.core.units import Ns, ns_from_ms
from headway.sched.runtime.agreement import Agreement, agree

GENERATION_BITS: Final = 32


class GroupParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`idle_poll_ms`: how long ranks that all were idle wait before they ask each other again."""

    group: GroupId
    members: tuple[NodeId, ...]
    deadline_ms: float = 1000.0
    idle_poll_ms: float = 2.0

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members) or len(self.members) < 2:
            raise ConfigError(f"group {self.group} needs two or more different members, got {list(self.members)}")


class Group:
    """Proposes, waits for all, agrees."""

    def __init__(self, params: GroupParams, node: NodeId, incarnation: int) -> None:
        if node not in params.members:
            raise ConfigError(f"{node} is no member of group {params.group}: {list(params.members)}")
        self.params = params
        self.is_waiting = False  # a proposal is out
        self._present: dict[NodeId, int] = {node: incarnation}
        self._step = 0
        self._deadline_ns = ns_from_ms(params.deadline_ms)

    @property
    def is_complete(self) -> bool:
        """Every member is there. A group is never half-run."""
        return len(self._present) == len(self.params.members)

    def joined(self, node: NodeId, incarnation: int) -> bool:
        """A member is there; True when the group begins a new generation with it."""
        if node not in self.params.members or self._present.get(node, 0) >= incarnation:
            return False
        self._present[node] = incarnation
        self._restart()
        return True

    def lost(self, node: NodeId, incarnation: int) -> bool:
        """A member is gone; True when that breaks the group."""
        if self._present.get(node, incarnation + 1) > incarnation:
            return False
        del self._present[node]
        self._restart()
        return True

    def _restart(self) -> None:
        self.is_waiting = False
        self._step = sum(self._present.values()) << GENERATION_BITS

    def propose(self, proposal: Proposal, at_ns: Ns) -> Propose:
        """Say what this rank would do in the next step."""
        self.is_waiting = True
        return Propose(self.params.group, self._step, proposal, at_ns + self._deadline_ns)

    def heard(self, event: Proposals) -> Agreement | None:
        """Everyone's proposals; None when they belong to a step that was given up."""
        if not self.is_waiting or event.step != self._step:
            return None
        self.is_waiting = False
        self._step += 1
        return agree(event.proposals)
