"""How much of a device's peaks an engine reaches, and what its host costs. Every set says where it comes from."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from headway.cost.lookup import entry_named, entry_of

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Duration = Annotated[float, msgspec.Meta(ge=0)]


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shares of peaks, and times that no peak explains. A calibration replaces the defaults."""

    name: str
    compute: Share = 0.65  # of the peak, in products of weights
    experts: Share = 0.5  # of the peak, in grouped products of experts
    attention: Share = 0.4  # of the peak, in attention
    memory: Share = 0.8  # of the memory bandwidth
    collective_floor: Share = 0.5  # of the link's floor and latencies: engines have one-shot all-reduces
    imbalance: Annotated[float, msgspec.Meta(ge=1)] = 1.15  # tokens of the fullest expert rank over the mean
    overhead_ns: Duration = 500_000.0  # device time of a step that is no product: sampling, graph launch, gathers
    host_base_ns: Duration = 200_000.0  # between two steps, not overlapped
    host_row_ns: Duration = 5_000.0  # of it per decode and chunk
    source: str
    date: str


def efficiency_of(mapping: Mapping[str, object]) -> Efficiency:
    """Read a set of a user file. Raises ConfigError."""
    return entry_of("efficiency", mapping, Efficiency)


def find_efficiency(name: str, extra: Mapping[str, Efficiency] | None = None) -> Efficiency:
    """Return a set by the engine's name; `extra` are those of a user file. Raises ConfigError."""
    return entry_named("efficiency", name, EFFICIENCIES, extra or {})


_SETS: Final = (
    Efficiency(
        name="vllm",
        source="assumed; checked against rows 1-16 of the silicon sample (tests/unit/cost/test_roofline_silicon.py)",
        date="2026-11",
    ),
    Efficiency(
        name="sglang",
        host_base_ns=50_000.0,
        host_row_ns=1_000.0,
        source="vllm's shares; host: SGLang v0.4 runs its scheduler one batch ahead, what is left is assumed",
        date="2026-11",
    ),
    Efficiency(
        name="trtllm",
        compute=0.7,
        memory=0.85,
        overhead_ns=300_000.0,
        host_base_ns=50_000.0,
        host_row_ns=1_000.0,
        source="assumed: vllm's, a little faster; row 13 of the silicon sample",
        date="2026-11",
    ),
    Efficiency(
        name="headway",
        compute=0.5,
        attention=0.3,
        memory=0.6,
        collective_floor=1.0,
        overhead_ns=1_000_000.0,
        host_base_ns=400_000.0,
        host_row_ns=10_000.0,
        source="assumed: plain torch kernels; calibrate before use",
        date="2026-11",
    ),
)

EFFICIENCIES: Final[Mapping[str, Efficiency]] = {entry.name: entry for entry in _SETS}
