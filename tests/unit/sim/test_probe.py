import msgspec
import pytest

from headway.bench.scenarios import read_scenario
from headway.bench.simulated import simulate
from headway.core.evidence import EvidenceRecord
from headway.sim import probe
from headway.sim.clients import Stream
from headway.sim.probe import Probe
from headway.sim.scenario import Scenario
from headway.sim.sources import source_of
from headway.sim.system import System

CHANGES: dict[str, object] = {"workload.count": 40, "workload.arrivals.rate_per_s": 40.0, "pools.replicas": 2}


class Deaf:
    """A sink that keeps nothing."""

    def request(self, record: object, stream: object) -> None: ...

    def decision(self, decision: object) -> None: ...


class Kept(Deaf):
    """Keeps what a client saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def request(self, record: object, stream: object) -> None:
        assert isinstance(record, EvidenceRecord)
        assert isinstance(stream, Stream)
        self.seen.append((msgspec.json.encode(record), tuple(stream.times_ns)))


def scenario(sample_ms: float = 1000.0) -> Scenario:
    return read_scenario(None, {**CHANGES, "sim.sample_ms": sample_ms})


def looked(sample_ms: float) -> tuple[System, Probe]:
    chosen = scenario()
    system = System(chosen, source_of(chosen), Deaf())
    seen = Probe(system, sample_ms)
    system.sim.serve(None)
    return system, seen


def test_looking_changes_nothing() -> None:  # SPEC J6
    def digest(sample_ms: float, change: dict[str, object]) -> str:
        chosen = read_scenario(None, {**CHANGES, "sim.sample_ms": sample_ms, **change})
        return simulate(chosen, log=True).system.sim.log.digest()

    assert len({digest(sample_ms, {"sim.jumps": False}) for sample_ms in (3.0, 7.0, 1e6)}) == 1


def test_looking_cuts_what_ran_ahead_and_changes_no_answer() -> None:
    """Steps that nobody looked at are told in one piece, or in several: to the same effect."""

    def answers(sample_ms: float) -> list[tuple[object, ...]]:
        ran = Kept()
        system = System(scenario(), source_of(scenario()), ran)
        Probe(system, sample_ms)
        system.sim.serve(None)
        return ran.seen

    assert answers(3.0) == answers(7.0) == answers(1e6)


def test_looks_are_bounded_and_keep_mean_and_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    _, every = looked(40.0)
    monkeypatch.setattr(probe, "LOOKS_MAX", 16)
    _, few = looked(40.0)
    assert len(every.samples) > 32
    assert 8 <= len(few.samples) < 16
    assert max(sample.kv_peak for sample in few.samples) <= max(sample.kv_peak for sample in every.samples)
    span = few.samples[1].at_ns - few.samples[0].at_ns
    first = [sample for sample in every.samples if sample.at_ns <= few.samples[0].at_ns]
    assert len(first) == span // 40_000_000
    for field in ("running", "busy", "kv_used"):
        mean = sum(getattr(sample, field) for sample in first) / len(first)
        assert getattr(few.samples[0], field) == pytest.approx(mean)
    assert few.samples[0].kv_peak == max(sample.kv_used for sample in first)


def test_a_busy_share_is_of_the_time_since_the_look_before() -> None:
    system, seen = looked(50.0)
    executors = [system.sim.lives[node].executor for pool in system.pools for node in pool.replicas]
    busy_ns = sum(executor.busy_ns for executor in executors if executor is not None)
    told_ns = sum(sample.busy for sample in seen.samples) * 5e7 * len(executors)
    assert told_ns == pytest.approx(busy_ns, abs=5e7 * len(executors))
    assert msgspec.structs.asdict(seen.samples[0])["pool"] == system.pools[0].params.name
