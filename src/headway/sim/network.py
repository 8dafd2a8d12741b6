"""Messages and copies between simulated nodes: FIFO per pair, with latency and faults."""

from collections.abc import Callable

import msgspec

from headway.core.ids import NodeId
from headway.core.units import Ns

Pair = tuple[NodeId, NodeId]


class NetworkParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency of a message, bandwidth of a copy, latency of an all-gather, and how long a death goes unnoticed."""

    latency_ns: Ns = 50_000
    copy_bytes_per_s: float = 1e9
    gather_ns: Ns = 20_000
    detect_ns: Ns = 5_000_000


class Network:
    """Computes arrival times; a pair never reorders."""

    def __init__(self, params: NetworkParams) -> None:
        self.params = params
        self._last: dict[Pair, Ns] = {}
        self._sends_until: dict[NodeId, Ns] = {}
        self._receives_until: dict[NodeId, Ns] = {}
        self.delay: Callable[[NodeId, NodeId, Ns], Ns] | None = None  # fault injection: extra latency
        self.copy_bytes_per_s: Callable[[NodeId, NodeId], float] = lambda _src, _dst: params.copy_bytes_per_s
        self.drop: Callable[[NodeId, NodeId, object], bool] | None = None  # fault injection: lose a message

    @property
    def is_disturbed(self) -> bool:
        """Messages may be lost, or take another time each."""
        return self.delay is not None or self.drop is not None

    def arrival(self, src: NodeId, dst: NodeId, at_ns: Ns) -> Ns:
        """When a message sent now arrives."""
        arrival, pair = at_ns + self.params.latency_ns, (src, dst)
        if self.delay is not None:
            arrival += self.delay(src, dst, at_ns)
        last = self._last.get(pair, 0)
        if last > arrival:
            arrival = last
        self._last[pair] = arrival
        return arrival

    def copied(self, src: NodeId, dst: NodeId, size: int, at_ns: Ns) -> Ns:
        """When the last byte of a copy that starts now arrives; a node sends one after the other, and receives so."""
        begun = max(at_ns, self._sends_until.get(src, 0), self._receives_until.get(dst, 0))
        sent = begun + round(size / self.copy_bytes_per_s(src, dst) * 1e9)
        self._sends_until[src] = self._receives_until[dst] = sent
        return sent + self.params.latency_ns

    def forget(self, node: NodeId) -> None:
        """A node died: its connections are new when it comes back."""
        for pair in [pair for pair in self._last if node in pair]:
            del self._last[pair]
        self._sends_until.pop(node, None)
        self._receives_until.pop(node, None)
