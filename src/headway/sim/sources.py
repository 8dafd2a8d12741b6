"""Who sends: the workloads of a scenario, for the models that its pools serve."""

from headway.sim.scenario import Scenario
from headway.workload.build import build
from headway.workload.mint import Served
from headway.workload.offered import Source


def source_of(scenario: Scenario) -> Source:
    """Return the clients of a scenario. Raises ConfigError for a workload that asks for what nobody serves."""
    served = {pool.model: Served(pool.model, pool.engine.block_size, pool.kind) for pool in scenario.pools}
    return build(scenario.workload, scenario.seed, list(served.values()))
