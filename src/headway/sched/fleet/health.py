"""Whether a replica's health checks let it take requests: bad ones in a row take it out, good ones bring it back."""

from typing import Annotated

import msgspec

from headway.core.ids import NodeId

Streak = Annotated[int, msgspec.Meta(ge=1)]


class HealthParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One lost probe is no outage, and one answered probe no recovery."""

    up_after: Streak = 2  # good probes in a row that bring a replica back
    down_after: Streak = 3  # bad probes in a row that take it out


class _Checked(msgspec.Struct):
    is_up: bool = True  # it has just joined, which takes more than a probe
    streak: int = 0  # probes in a row that speak against `is_up`


class Health:
    """The replicas that are there, by instance: a restarted one begins anew."""

    def __init__(self, params: HealthParams) -> None:
        self._params = params
        self._checked: dict[NodeId, _Checked] = {}
        self.down: dict[NodeId, None] = {}

    def joined(self, node: NodeId) -> None:
        """An instance is there; nothing that was said of an earlier one counts."""
        self._checked[node] = _Checked()
        self.down.pop(node, None)

    def left(self, node: NodeId) -> None:
        """It is gone."""
        self._checked.pop(node, None)
        self.down.pop(node, None)

    def is_up(self, node: NodeId) -> bool:
        """True unless its probes say otherwise."""
        return node not in self.down

    def probed(self, node: NodeId, ok: bool) -> bool:
        """Fold in one probe; True when the replica went up or down by it."""
        checked = self._checked.get(node)
        if checked is None:
            return False
        if ok == checked.is_up:
            checked.streak = 0
            return False
        checked.streak += 1
        if checked.streak < (self._params.down_after if checked.is_up else self._params.up_after):
            return False
        checked.is_up, checked.streak = ok, 0
        if ok:
            del self.down[node]
        else:
            self.down[node] = None
        return True
