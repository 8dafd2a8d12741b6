"""What nodes of a system may know: what messages told them, as late as messages are (REFERENCE 5)."""

import os
import subprocess
import sys

import pytest
from tests.sim.systems import Kept, linear, ran, scenario
from tests.sim.test_belief_and_truth import reachable

from headway.core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from headway.sched.config import WorkerConfig
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.scenario import NetworkSettings, RunSettings
from headway.sim.scrape import ScrapeParams
from headway.sim.sources import source_of
from headway.sim.system import System
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

BUSY = Synthetic(count=80, arrivals=Poisson(rate_per_s=40.0), prompt=Lengths(mean=200.0), output=Lengths(mean=20.0))


def ages_ns(system: System) -> list[int]:
    """How old what the front knows of each replica is, every 7 ms of the first second."""
    found: list[int] = []
    for look in range(8, 1000, 7):
        system.sim.serve(look * NS_PER_MS)
        reports = [replica.report for replica in system.front.router.replicas.values()]
        found += [system.sim.now_ns - report.at_ns for report in reports if report is not None]
    return found


def test_the_front_knows_of_replicas_what_a_message_has_carried() -> None:
    wanted = scenario(linear(replicas=2), workload=(BUSY,), network=NetworkSettings(node_us=3000), sim=RunSettings())
    ages = ages_ns(System(wanted, source_of(wanted), Kept()))
    assert min(ages) >= 3000 * NS_PER_US
    assert max(ages) > 20 * NS_PER_MS  # reports come at most every 20 ms


def test_reports_come_as_often_as_the_replicas_send_them() -> None:
    rare = linear(replicas=2, worker=WorkerConfig(report_interval_ms=200.0))
    wanted = scenario(rare, workload=(BUSY,), sim=RunSettings())
    assert max(ages_ns(System(wanted, source_of(wanted), Kept()))) > 150 * NS_PER_MS


def test_a_scraped_pool_is_seen_seconds_late() -> None:
    pool = linear(replicas=2, seen="scrape", scrape=ScrapeParams(interval_s=0.5, delay_s=0.2))
    wanted = scenario(pool, workload=(BUSY,), sim=RunSettings())
    ages = ages_ns(System(wanted, source_of(wanted), Kept()))
    assert min(ages) >= NS_PER_S // 5
    assert max(ages) > NS_PER_S // 2


def test_nobody_but_the_engines_knows_how_long_answers_get() -> None:  # SPEC J1
    system, kept = ran(scenario(linear(replicas=2)))
    assert all(offered.request.output_tokens_predicted is None for offered, _, _ in kept.ended)
    lengths = system.sim.offers.lengths
    for node in (FRONT, CONTROL, *system.replicas):
        assert not any(item is lengths for item in reachable(system.sim.lives[node].node))
    executor = system.sim.lives[system.replicas[0]].executor
    assert executor is not None
    assert any(item is lengths for item in reachable(executor.engine))  # the search would find it


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_log_does_not_depend_on_the_process(hash_seed: str) -> None:  # SPEC J6
    program = """
from tests.sim.systems import linear, ran, scenario
pools = linear(name="p", role="prefill"), linear(name="d", role="decode"), linear(name="m", model="other")
print(ran(scenario(*pools), log=True)[0].sim.log.digest())
"""
    pools = (linear(name="p", role="prefill"), linear(name="d", role="decode"), linear(name="m", model="other"))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ran(scenario(*pools), log=True)[0].sim.log.digest()
