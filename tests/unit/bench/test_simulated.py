import itertools
import time
from pathlib import Path

import pytest

from headway.bench.simulated import Progress, run_table, simulate
from headway.core.errors import ConfigError
from headway.sim.pools import PoolParams
from headway.sim.scenario import GatewaySettings, Scenario
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

SMALL = Synthetic(count=30, arrivals=Poisson(rate_per_s=20.0), prompt=Lengths(mean=40.0), output=Lengths(mean=20.0))


def test_every_request_is_counted() -> None:  # SPEC J1, K1
    summary = simulate(Scenario(workload=(SMALL,))).summary
    assert (summary.arrived, summary.completed, summary.complete) == (30, 30, True)


def test_more_replicas_serve_a_burst_sooner() -> None:
    burst = Synthetic(
        count=40, arrivals=Poisson(rate_per_s=10_000.0), prompt=Lengths(mean=300.0), output=Lengths(mean=20.0)
    )
    one, four = (
        simulate(Scenario(workload=(burst,), pools=(PoolParams(replicas=n),))).summary.ttft_ms.p99 for n in (1, 4)
    )
    assert one is not None
    assert four is not None
    assert four < 0.5 * one


def test_a_run_that_is_stopped_is_not_complete() -> None:
    told: list[Progress] = []

    def watch(progress: Progress) -> bool:
        told.append(progress)
        return len(told) < 3

    slow = Synthetic(count=30, arrivals=Poisson(rate_per_s=1.0), prompt=Lengths(mean=40.0), output=Lengths(mean=20.0))
    result = simulate(Scenario(workload=(slow,)), watch)
    assert not result.summary.complete
    assert result.summary.completed < 30
    assert [progress.virtual_s for progress in told] == sorted(progress.virtual_s for progress in told)


def test_a_scenario_that_cannot_work_leaves_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    simulate(Scenario(workload=(SMALL,)), folder=tmp_path)
    before = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match="did you mean"):
        simulate(Scenario(workload=(SMALL,), pools=(PoolParams(model="lama-3.1-8b"),)), folder=tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before


def test_a_gateway_that_could_not_stream_so_much_is_told() -> None:
    busy = [
        simulate(Scenario(workload=(SMALL,), gateway=GatewaySettings(chunk_us=chunk_us, processes=processes))).summary
        for chunk_us, processes in ((31.0, 1), (10_000.0, 1), (10_000.0, 2))
    ]
    assert "gateway " not in run_table(busy[0])
    assert "gateway " in run_table(busy[1])
    assert busy[1].gateway_busy == pytest.approx(2 * busy[2].gateway_busy, rel=0.01)
    tokens = sum(pool.counters["generated_tokens"] for pool in busy[1].pool_use.values())
    assert busy[1].gateway_busy == pytest.approx((30 * 600e-6 + tokens * 10e-3) / busy[1].virtual_s)


def test_one_seed_leaves_one_log_however_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC J6
    calm = Synthetic(count=6, arrivals=Poisson(rate_per_s=1.0), prompt=Lengths(mean=40.0), output=Lengths(mean=200.0))

    def digest(seconds_per_look: float) -> str:
        clock = itertools.count(0.0, seconds_per_look)
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        run = simulate(Scenario(workload=(calm,)), log=True)
        assert run.summary.complete
        return run.system.sim.log.digest()

    assert digest(1e-6) == digest(0.05)
