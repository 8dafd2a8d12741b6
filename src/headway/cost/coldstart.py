"""What a new replica takes before it serves, by phase: start, pull, load, compile, capture (SPEC A13)."""

from typing import Annotated

import msgspec

from headway.core.units import NS_PER_S, Ns, ns_from_s

Rate = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class ColdStartParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rates and times of a start. Where no source is named, they are assumptions: measure and replace."""

    start_s: Seconds = 8.0  # process, imports, device context, process groups; vLLM logs say 5 to 15
    pull_bytes_per_s: Rate = 1e9  # from the object store, per host (seed 003, section 9)
    disk_bytes_per_s: Rate = 3e9  # local NVMe, per host (seed 003, section 9)
    device_bytes_per_s: Rate = 25e9  # host to device, per device (PCIe 4)
    compile_s: Seconds = 120.0  # 1 to 3 minutes (seed 003, section 9); 0: the engine runs eagerly
    compile_cached_s: Seconds = 10.0  # with a persisted compile cache
    captures: Annotated[int, msgspec.Meta(ge=0)] = 32  # graphs, one per batch bucket
    capture_s: Seconds = 0.5  # of each
    has_weights: bool = False  # the host has them on its disk
    has_compiled: bool = False  # the compile cache is there


class ColdStart(msgspec.Struct, frozen=True):
    """Phases of one start, one after the other."""

    start_ns: Ns
    pull_ns: Ns
    load_ns: Ns
    compile_ns: Ns
    capture_ns: Ns

    @property
    def total_ns(self) -> Ns:
        """From the decision to the first request."""
        return self.start_ns + self.pull_ns + self.load_ns + self.compile_ns + self.capture_ns


def cold_start(weight_bytes: float, params: ColdStartParams, *, devices: int = 1, hosts: int = 1) -> ColdStart:
    """Return the phases of a replica whose `weight_bytes` lie over `devices` of `hosts`; every host pulls its share.

    Loading streams from disk to device, so the slower of both counts.
    """
    of_host = weight_bytes / hosts
    load = max(of_host / params.disk_bytes_per_s, weight_bytes / devices / params.device_bytes_per_s)
    return ColdStart(
        start_ns=ns_from_s(params.start_s),
        pull_ns=0 if params.has_weights else round(of_host / params.pull_bytes_per_s * NS_PER_S),
        load_ns=round(load * NS_PER_S),
        compile_ns=_compile_ns(params),
        capture_ns=ns_from_s(params.captures * params.capture_s),
    )


def _compile_ns(params: ColdStartParams) -> Ns:
    """A cache can only shorten what is compiled at all."""
    return ns_from_s(min(params.compile_s, params.compile_cached_s) if params.has_compiled else params.compile_s)
