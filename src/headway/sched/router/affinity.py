"""Which replica a session is bound to (A4): bound by a first token, kept until another is clearly better."""

from collections import OrderedDict

import msgspec

from headway.core.ids import NodeId
from headway.core.units import Ns


class Binding(msgspec.Struct, gc=False):
    """`since_ns`: when the session came to this replica, not when it was last there."""

    replica: NodeId
    since_ns: Ns


class Sessions:
    """Bounded; the session that was not seen for longest goes."""

    def __init__(self, sessions_max: int) -> None:
        self._max = sessions_max
        self._bound: OrderedDict[tuple[str, str], Binding] = OrderedDict()  # by tenant and session

    def __len__(self) -> int:
        return len(self._bound)

    def of(self, tenant: str, session: str | None) -> Binding | None:
        """Return where the session is bound."""
        return None if session is None else self._bound.get((tenant, session))

    def bind(self, tenant: str, session: str, replica: NodeId, at_ns: Ns) -> None:
        """Its request got a first token at `replica`."""
        key = (tenant, session)
        known = self._bound.get(key)
        if known is None:
            self._bound[key] = Binding(replica, at_ns)
            if len(self._bound) > self._max:
                self._bound.popitem(last=False)
            return
        self._bound.move_to_end(key)
        if known.replica != replica:
            self._bound[key] = Binding(replica, at_ns)

    def left(self, replica: NodeId) -> None:
        """The replica is gone with what it held. O(sessions)."""
        for key in [key for key, bound in self._bound.items() if bound.replica == replica]:
            del self._bound[key]
