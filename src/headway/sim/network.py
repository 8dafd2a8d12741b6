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
        self._link_free: dict[Pair, Ns] = {}
        self.delay: Callable[[NodeId, NodeId, Ns], Ns] | None = None  # fault injection: extra latency
        self.copy_bytes_per_s: Callable[[NodeId, NodeId], float] = lambda _src, _dst: params.copy_bytes_per_s
        self.drop: Callable[[NodeId, NodeId, object], bool] | None = None  # fault injection: lose a message

    def arrival(self, src: NodeId, dst: NodeId, at_ns: Ns) -> Ns:
        """When a message sent now arrives."""
        extra = 0 if self.delay is None else self.delay(src, dst, at_ns)
        pair = (src, dst)
        arrival = max(at_ns + self.params.latency_ns + extra, self._last.get(pair, 0))
        self._last[pair] = arrival
        return arrival

    def copied(self, src: NodeId, dst: NodeId, size: int, at_ns: Ns) -> Ns:
        """When the last byte of a copy that starts now arrives; copies of a pair share its link in turn."""
        pair = (src, dst)
        begun = max(at_ns, self._link_free.get(pair, 0))
        sent = begun + round(size / self.copy_bytes_per_s(src, dst) * 1e9)
        self._link_free[pair] = sent
        return sent + self.params.latency_ns

    def forget(self, node: NodeId) -> None:
        """A node died: its connections are new when it comes back."""
        for table in (self._last, self._link_free):
            for pair in [pair for pair in table if node in pair]:
                del table[pair]
