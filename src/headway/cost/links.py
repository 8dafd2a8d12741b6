"""Catalogue of links between devices: inside a host (NVLink, Infinity Fabric, PCIe) and between hosts (InfiniBand,
Ethernet). All rates are per device and direction. Every entry says where its numbers come from and of which date.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from headway.core.units import NS_PER_US
from headway.cost.lookup import entry_named, entry_of

Rate = Annotated[float, msgspec.Meta(gt=0)]
Duration = Annotated[float, msgspec.Meta(ge=0)]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What moves bytes between two devices. `floors_ns` and `all_reduce_bytes_per_s` are measured, by group size."""

    name: str
    kind: Literal["host", "network"]
    peak_bytes_per_s: Rate  # of the data sheet
    bytes_per_s: Rate  # what one large copy reaches
    ring_bytes_per_s: Rate  # what every member of a ring sends while it reduces
    latency_ns: Duration  # fixed part of one message
    devices_max: Annotated[int, msgspec.Meta(ge=1)]  # that reach each other at this rate
    floors_ns: dict[int, float] = {}  # an all-reduce of few bytes takes this; other sizes: 2(N-1) latencies
    all_reduce_bytes_per_s: dict[int, float] = {}  # large all-reduces: size / time; other sizes: from the ring
    source: str
    date: str


def link_of(mapping: Mapping[str, object]) -> Link:
    """Read a link of a user file. Raises ConfigError."""
    return entry_of("link", mapping, Link)


def find_link(name: str, extra: Mapping[str, Link] | None = None) -> Link:
    """Return a link by name; `extra` are those of a user file. Raises ConfigError."""
    return entry_named("link", name, LINKS, extra or {})


def _us(**by_size: float) -> dict[int, float]:
    return {int(size[1:]): us * NS_PER_US for size, us in by_size.items()}


def _gb_per_s(**by_size: float) -> dict[int, float]:
    return {int(size[1:]): rate * 1e9 for size, rate in by_size.items()}


_VIDUR = "Vidur's published profiles (microsoft/vidur 7d47513), fitted"
_SHEET = "data sheet; reached share assumed"

_HOST: Final = (
    Link(
        name="nvlink2",
        kind="host",
        peak_bytes_per_s=150e9,
        bytes_per_s=113e9,
        ring_bytes_per_s=95e9,
        latency_ns=6_000,
        devices_max=8,
        source=f"V100 {_SHEET} as measured of nvlink3 (0.75, 0.63)",
        date="2017-05",
    ),
    Link(
        name="nvlink3",
        kind="host",
        peak_bytes_per_s=300e9,
        bytes_per_s=226e9,
        ring_bytes_per_s=189e9,
        latency_ns=5_000,
        devices_max=8,
        floors_ns=_us(n2=44, n4=27, n8=35),
        all_reduce_bytes_per_s=_gb_per_s(n2=171, n4=126, n8=108),
        source=f"A100 data sheet (600 GB/s both ways); {_VIDUR}: P2P 226 GB/s, all-reduce and floors of 2, 4, 8",
        date="2024-05",
    ),
    Link(
        name="nvlink4",
        kind="host",
        peak_bytes_per_s=450e9,
        bytes_per_s=362e9,
        ring_bytes_per_s=373e9,
        latency_ns=5_000,
        devices_max=8,
        floors_ns=_us(n2=19, n4=23, n8=38),
        all_reduce_bytes_per_s=_gb_per_s(n2=294, n4=229, n8=213),
        source=f"H100 data sheet (900 GB/s both ways, NVSwitch 3); {_VIDUR}: P2P 362 GB/s, all-reduce of 2, 4, 8",
        date="2024-05",
    ),
    Link(
        name="nvlink4-h800",
        kind="host",
        peak_bytes_per_s=200e9,
        bytes_per_s=160e9,
        ring_bytes_per_s=160e9,
        latency_ns=5_000,
        devices_max=8,
        source="H800: 400 GB/s both ways; DeepEP's readme measures 160 GB/s",
        date="2025-02",
    ),
    Link(
        name="nvlink5",
        kind="host",
        peak_bytes_per_s=900e9,
        bytes_per_s=720e9,
        ring_bytes_per_s=740e9,
        latency_ns=5_000,
        devices_max=8,
        floors_ns=_us(n2=19, n4=23, n8=38),
        source="B200 data sheet (1.8 TB/s both ways); reached shares and floors of nvlink4 assumed",
        date="2024-11",
    ),
    Link(
        name="nvlink5-72",
        kind="host",
        peak_bytes_per_s=900e9,
        bytes_per_s=720e9,
        ring_bytes_per_s=740e9,
        latency_ns=5_000,
        devices_max=72,
        floors_ns=_us(n2=19, n4=23, n8=38),
        source="GB200 NVL72 data sheet; reached shares and floors of nvlink4 assumed",
        date="2024-11",
    ),
    Link(
        name="nvlink-bridge",
        kind="host",
        peak_bytes_per_s=300e9,
        bytes_per_s=240e9,
        ring_bytes_per_s=240e9,
        latency_ns=5_000,
        devices_max=2,
        source=f"H100 PCIe {_SHEET} (0.8); pairs only",
        date="2023-03",
    ),
    Link(
        name="xgmi-mi300",
        kind="host",
        peak_bytes_per_s=448e9,
        bytes_per_s=48e9,
        ring_bytes_per_s=310e9,
        latency_ns=7_000,
        devices_max=8,
        source="MI300X data sheet: 7 links of 64 GB/s each way, so one pair has one of them; reached 0.75, 0.7 assumed",
        date="2023-12",
    ),
    Link(
        name="pcie4",
        kind="host",
        peak_bytes_per_s=31.5e9,
        bytes_per_s=25e9,
        ring_bytes_per_s=20e9,
        latency_ns=10_000,
        devices_max=8,
        source="PCIe 4.0 x16: 31.5 GB/s each way; 0.8 of it for copies, 0.63 through the host for rings assumed",
        date="2017-10",
    ),
    Link(
        name="pcie5",
        kind="host",
        peak_bytes_per_s=63e9,
        bytes_per_s=50e9,
        ring_bytes_per_s=40e9,
        latency_ns=10_000,
        devices_max=8,
        source="PCIe 5.0 x16: 63 GB/s each way; 0.8 of it for copies, 0.63 through the host for rings assumed",
        date="2019-05",
    ),
    Link(
        name="host-memory",
        kind="host",
        peak_bytes_per_s=20e9,
        bytes_per_s=8e9,
        ring_bytes_per_s=8e9,
        latency_ns=20_000,
        devices_max=2,
        source="processes of one CPU that share memory; assumed",
        date="2026-11",
    ),
)


def _network(name: str, bits_per_s: float, reached: float, latency_ns: float, source: str, date: str) -> Link:
    peak = bits_per_s / 8
    return Link(
        name=name,
        kind="network",
        peak_bytes_per_s=peak,
        bytes_per_s=reached * peak,
        ring_bytes_per_s=0.7 * peak if name.startswith("ib") else reached * peak,
        latency_ns=latency_ns,
        devices_max=1 << 16,
        source=source,
        date=date,
    )


_RING = "rings 0.7 of it: Vidur's H100 profile between hosts, 34 of 50 GB/s"
_NETWORK: Final = (
    _network(
        "ib-hdr",
        200e9,
        0.87,
        5_000,
        f"HDR, one port per device; 0.87: Mooncake, 87 of 4 x 200 Gb/s; {_RING}",
        "2025-02",
    ),
    _network(
        "ib-ndr",
        400e9,
        0.9,
        5_000,
        f"NDR, one port per device; 0.9: DeepEP's table of 16 and 32 ranks; {_RING}",
        "2025-02",
    ),
    _network(
        "ib-xdr", 800e9, 0.9, 5_000, f"XDR, one port per device; reached share of NDR assumed; {_RING}", "2024-03"
    ),
    _network("eth-10", 10e9, 0.9, 30_000, "10 Gb/s, TCP; 0.9 and 30 us assumed", "2026-11"),
    _network("eth-25", 25e9, 0.9, 30_000, "25 Gb/s, TCP; 0.9 and 30 us assumed", "2026-11"),
    _network("eth-100", 100e9, 0.85, 15_000, "100 Gb/s, RoCE; 0.85 and 15 us assumed", "2026-11"),
)

LINKS: Final[Mapping[str, Link]] = {link.name: link for link in (*_HOST, *_NETWORK)}
