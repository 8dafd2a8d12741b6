"""How much of a device's peaks an engine reaches, and what its host costs. Every set says where it comes from.

`benchmarks/efficiency.py` repeats the fits.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from headway.cost.lookup import entry_named, entry_of

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Duration = Annotated[float, msgspec.Meta(ge=0)]


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shares of peaks, and times that no peak explains. A calibration replaces the defaults."""

    name: str
    compute: Share  # of the peak, in products of weights
    attention: Share  # of the peak, in attention
    memory: Share  # of the memory bandwidth
    collective_floor: Share  # of the link's floor and latencies: engines have one-shot all-reduces
    overhead_ns: Duration  # device time of a step that is no product: sampling, graph launch, gathers
    host_base_ns: Duration  # host time to plan and launch a step; hidden only by engines that plan ahead
    host_row_ns: Duration  # of it per decode and chunk
    row_ns: Duration = 0.0  # device time per decode and chunk that no product explains
    experts: Share = 0.5  # of the peak, in grouped products of experts; assumed
    imbalance: Annotated[float, msgspec.Meta(ge=1)] = 1.15  # tokens of the fullest expert rank over the mean; assumed
    source: str
    date: str


def efficiency_of(mapping: Mapping[str, object]) -> Efficiency:
    """Read a set of a user file. Raises ConfigError."""
    return entry_of("efficiency", mapping, Efficiency)


def find_efficiency(name: str, extra: Mapping[str, Efficiency] | None = None) -> Efficiency:
    """Return a set by the engine's name; `extra` are those of a user file. Raises ConfigError."""
    return entry_named("efficiency", name, EFFICIENCIES, extra or {})


_ROWS = "aiconfigurator-core 0.12.0's silicon sample (Apache-2.0), the half that is open here, H100 and H200"
_SETS: Final = (
    Efficiency(
        name="vllm",
        compute=0.63,
        attention=0.5,
        memory=0.81,
        collective_floor=0.53,
        overhead_ns=1_000_000.0,
        row_ns=47_000.0,
        host_base_ns=950_000.0,
        host_row_ns=10_000.0,
        source=f"fitted to TPOT of 187 vLLM rows of {_ROWS}: median error 4 %, 9 of 10 within 18 %; only the sums of"
        " host and device time, per step and per row, are measured: how they split is assumed",
        date="2026-11",
    ),
    Efficiency(
        name="sglang",
        compute=0.63,
        attention=0.5,
        memory=0.81,
        collective_floor=0.53,
        overhead_ns=0.0,
        row_ns=39_000.0,
        host_base_ns=0.0,
        host_row_ns=1_000.0,
        source=f"vllm's shares; times fitted to 26 SGLang rows of {_ROWS}: median error 11 %, 9 of 10 within 52 %",
        date="2026-11",
    ),
    Efficiency(
        name="trtllm",
        compute=0.63,
        attention=0.5,
        memory=0.81,
        collective_floor=0.53,
        overhead_ns=1_700_000.0,
        row_ns=54_000.0,
        host_base_ns=200_000.0,
        host_row_ns=2_000.0,
        source=f"vllm's shares; times fitted to 203 TRT-LLM rows of {_ROWS}: median error 13 %, 9 of 10 within 33 %",
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
