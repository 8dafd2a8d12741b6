"""Times of collectives over a link (REFERENCE 2): a fixed part, a floor for small messages, and bytes over a rate."""

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S
from headway.cost.links import Link

ALL_TO_ALL_FIXED_NS = 30_000.0  # launch, signal and wait: what is left of DeepEP's tables beside bytes over rates


class Line(msgspec.Struct, frozen=True, gc=False):
    """t = max(floor, fixed + bytes * per_byte), in nanoseconds."""

    fixed_ns: float = 0.0
    per_byte_ns: float = 0.0
    floor_ns: float = 0.0

    def ns(self, size: float) -> float:
        """Time for so many bytes."""
        return max(self.floor_ns, self.fixed_ns + size * self.per_byte_ns)


def all_reduce(link: Link, ranks: int) -> Line:
    """Ring: 2(N-1)a + 2(N-1)/N * S/B, or what was measured for this group size on this link."""
    if ranks <= 1:
        return Line()
    _check(link, ranks)
    latencies = 2 * (ranks - 1) * link.latency_ns
    floor = link.floors_ns.get(ranks, latencies)
    measured = link.all_reduce_bytes_per_s.get(ranks)
    if measured is not None:  # the measured rate is size over time, with the latencies in it
        return Line(0.0, NS_PER_S / measured, floor)
    fixed = 0.0 if ranks in link.floors_ns else latencies
    return Line(fixed, 2 * (ranks - 1) / ranks * NS_PER_S / link.ring_bytes_per_s, floor)


def all_gather(link: Link, ranks: int) -> Line:
    """Half an all-reduce of the gathered size; a reduce-scatter takes the same."""
    whole = all_reduce(link, ranks)
    return Line(whole.fixed_ns / 2, whole.per_byte_ns / 2, whole.floor_ns / 2)


def p2p(link: Link) -> Line:
    """a + S/B."""
    return Line(link.latency_ns, NS_PER_S / link.bytes_per_s)


def all_to_all_ns(local: Link, network: Link, ranks: int, ranks_per_host: int, size: float) -> float:
    """a + max(bytes to peers in the host / B, bytes to other hosts / B_net); `size` is what a rank sends to all.

    Both ways go at once. Every rank sends as much as it receives, evenly to all, one share stays at home.
    """
    if ranks <= 1:
        return 0.0
    near = min(ranks, ranks_per_host)
    inside = size * (near - 1) / ranks / local.bytes_per_s
    outside = size * (ranks - near) / ranks / network.bytes_per_s
    return ALL_TO_ALL_FIXED_NS + max(inside, outside) * NS_PER_S


def all_to_all(local: Link, network: Link, ranks: int, ranks_per_host: int) -> Line:
    """The same as a line in the bytes that a rank sends: every copy on its own, as kernels for low latency do."""
    fixed = all_to_all_ns(local, network, ranks, ranks_per_host, 0.0)
    return Line(fixed, all_to_all_ns(local, network, ranks, ranks_per_host, 1e9) / 1e9 - fixed / 1e9)


def forwarding_all_to_all(local: Link, network: Link, ranks: int, ranks_per_host: int, copies: int) -> Line:
    """As kernels for throughput do: a token goes once to every host that wants it and is copied on inside (DeepEP).

    A token has `copies` addressees, spread evenly: H hosts see H (1 - (1 - 1/H)^copies) of it.
    """
    if ranks <= 1:
        return Line()
    near = min(ranks, ranks_per_host)
    hosts = -(-ranks // near)
    reached = (hosts - 1) * (1 - (1 - 1 / hosts) ** copies) / copies
    inside, outside = (near - 1) / near / local.bytes_per_s, reached / network.bytes_per_s
    return Line(ALL_TO_ALL_FIXED_NS, max(inside, outside) * NS_PER_S)


def dispatch_bytes(tokens: float, experts_per_token: int, hidden: int, *, scaled_fp8: bool = True) -> float:
    """What a rank sends to experts: one byte per number and a four-byte scale per 128 of them, else two bytes."""
    return tokens * experts_per_token * hidden * ((1 + 4 / 128) if scaled_fp8 else 2.0)


def combine_bytes(tokens: float, experts_per_token: int, hidden: int) -> float:
    """What comes back from experts, two bytes per number."""
    return tokens * experts_per_token * hidden * 2.0


def _check(link: Link, ranks: int) -> None:
    if ranks > link.devices_max:
        raise ConfigError(
            f"link {link.name} joins at most {link.devices_max} devices, the group has {ranks};"
            " use fewer ranks per host or another link"
        )
