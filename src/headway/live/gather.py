"""The all-gather of group proposals: complete when every member spoke, or its silent members are reported."""

from collections.abc import Callable, Mapping, Sequence

from headway.core.errors import InvariantError
from headway.core.events import Proposal
from headway.core.ids import GroupId, NodeId
from headway.core.units import Ns, s_from_ns
from headway.live.clock import Clock

Schedule = Callable[[float, Callable[[], None]], object]


class Gatherer:
    """Collects the proposals of every group and step."""

    def __init__(
        self,
        groups: Mapping[GroupId, Sequence[NodeId]],
        clock: Clock,
        call_later: Schedule,
        complete: Callable[[GroupId, int, dict[NodeId, Proposal]], None],
        missing: Callable[[GroupId, int, list[NodeId]], None],
    ) -> None:
        self._members = {group: tuple(members) for group, members in groups.items()}
        self._clock, self._call_later, self._complete, self._missing = clock, call_later, complete, missing
        self._open: dict[tuple[GroupId, int], dict[NodeId, Proposal]] = {}

    @property
    def open(self) -> int:
        """Steps that wait for somebody."""
        return len(self._open)

    def propose(self, node: NodeId, group: GroupId, step: int, proposal: Proposal, deadline_ns: Ns) -> None:
        """Take one member's proposal. Raises InvariantError for a stranger or a second proposal for the step."""
        members = self._members.get(group, ())
        if node not in members:
            raise InvariantError(f"{node} proposes for group {group}, whose members are {list(members)}")
        key = (group, step)
        if key not in self._open:
            self._open[key] = {}
            self._call_later(max(0.0, s_from_ns(deadline_ns - self._clock.now_ns())), lambda: self._expire(key))
        heard = self._open[key]
        if node in heard:
            raise InvariantError(f"{node} proposes twice for step {step} of group {group}")
        heard[node] = proposal
        if len(heard) == len(members):
            del self._open[key]
            self._complete(group, step, {member: heard[member] for member in members})

    def forget(self, node: NodeId) -> None:
        """A member is lost: what its groups have open will never complete."""
        for group, step in list(self._open):
            if node in self._members[group]:
                del self._open[(group, step)]

    def _expire(self, key: tuple[GroupId, int]) -> None:
        heard = self._open.pop(key, None)
        if heard is not None:
            group, step = key
            self._missing(group, step, [member for member in self._members[group] if member not in heard])
