"""One seed, one log (SPEC J6); a recorded node replayed alone answers the same (rule 1 of the ring)."""

import subprocess
import sys

import pytest
from tests.sim.workloads import fleet, mix

from headway.sim.eventlog import replay
from headway.sim.fleet import FRONT, Fleet
from headway.sim.truth import LinearTruth

SCRIPT = "from tests.sim.test_determinism import ran; print(ran().sim.log.digest())"


def ran() -> Fleet:
    simulated = fleet(truth=LinearTruth(jitter=0.2, seed=4, host_base_ns=300_000.0))
    for place, item in enumerate(mix(40, seed=4)):
        simulated.sim.arrive(FRONT, item, item.arrived_ns, leave_after=2 if place % 7 == 3 else None)
    simulated.sim.at(40_000_000, lambda _: simulated.sim.kill(simulated.replicas[0]))
    simulated.sim.at(70_000_000, lambda _: simulated.sim.restart(simulated.replicas[0]))
    simulated.sim.run()
    return simulated


def test_two_simulations_in_one_process_give_byte_identical_logs() -> None:  # SPEC J6
    first, second = ran(), ran()
    assert first.sim.log.lines == second.sim.log.lines
    assert len(first.sim.log.lines) > 200


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_log_does_not_depend_on_the_process(hash_seed: str) -> None:  # SPEC J6
    command = [sys.executable, "-c", SCRIPT]
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "src:."}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == ran().sim.log.digest()


def test_each_recorded_node_replays_alone() -> None:  # SPEC J1
    simulated = ran()
    log = simulated.sim.log
    assert replay(simulated.build_front(), log.of(FRONT)) is None
    for replica in simulated.replicas:
        assert replay(simulated.build_worker(replica, 1), log.of(replica)) is None
    reborn = simulated.replicas[0]
    assert log.of(reborn, 2)
    assert replay(simulated.build_worker(reborn, 2), log.of(reborn, 2)) is None


def test_a_replay_that_differs_is_found() -> None:
    simulated = ran()
    turns = simulated.sim.log.of(FRONT)
    assert replay(simulated.build_front(), turns[3:]) is not None
