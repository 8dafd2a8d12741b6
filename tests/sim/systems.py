"""Scenarios and observers for tests of whole systems."""

import msgspec

from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.sim.clients import Stream
from headway.sim.pools import EngineSize, PoolParams, TruthParams
from headway.sim.scenario import RunSettings, Scenario
from headway.sim.sources import source_of
from headway.sim.system import System
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.offered import Offered
from headway.workload.spec import Synthetic

EXACT = TruthParams(scale=1.0, jitter=0.0, spread=0.0)
SMALL = Synthetic(count=40, arrivals=Poisson(rate_per_s=20.0), prompt=Lengths(mean=200.0), output=Lengths(mean=20.0))


class Kept:
    """Keeps everything."""

    def __init__(self) -> None:
        self.ended: list[tuple[Offered, Stream, EvidenceRecord]] = []
        self.decisions: list[Decision] = []

    def request(self, record: EvidenceRecord, stream: Stream) -> None:
        assert stream.offered is not None
        self.ended.append((stream.offered, stream, record))

    def decision(self, decision: Decision) -> None:
        self.decisions.append(decision)

    @property
    def replicas(self) -> set[str]:
        """Where requests ended."""
        return {f"{record.replica}" for _, _, record in self.ended}


def linear(**change: object) -> PoolParams:
    """A pool whose steps take a fixed time and so much per token."""
    return msgspec.structs.replace(PoolParams(cost="linear", engine=EngineSize(kv_blocks=400)), **change)


def scenario(*pools: PoolParams, **change: object) -> Scenario:
    """A scenario with checks on, and fields changed."""
    fields: dict[str, object] = {"pools": pools or (linear(replicas=2),), "workload": (SMALL,)}
    fields["sim"] = RunSettings(check=True)
    return Scenario(**{**fields, **change})  # type: ignore[arg-type]  # fields by name


def ran(wanted: Scenario, *, log: bool = False) -> tuple[System, Kept]:
    """Run to the end of everything."""
    kept = Kept()
    system = System(wanted, source_of(wanted), kept, log=log)
    end_ns = None if wanted.sim.until_s is None else round(wanted.sim.until_s * 1e9)
    system.sim.serve(end_ns)
    return system, kept
