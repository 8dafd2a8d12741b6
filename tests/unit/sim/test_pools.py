"""Pools of a scenario."""

import pytest
from msgspec.structs import replace

from headway.core.errors import ConfigError
from headway.cost.diffusion_devices import Execution
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.llm.params import LlmParams
from headway.sim.pools import Hardware, PoolParams


def test_what_belongs_to_the_other_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool draw: scheduler means nothing to a pool of kind 'diffusion'"):
        PoolParams(name="draw", kind="diffusion", scheduler=replace(LlmParams(), max_seqs=3))
    with pytest.raises(ConfigError, match="pool draw: role means nothing"):
        PoolParams(name="draw", kind="diffusion", role="decode")
    with pytest.raises(ConfigError, match="pool text: diffusion means nothing to a pool of kind 'llm'"):
        PoolParams(name="text", diffusion=DiffusionParams(batch_max=9))


def test_a_replica_holds_the_devices_of_its_kind() -> None:
    assert PoolParams(hardware=Hardware(tp=2, pp=2)).devices == 4
    assert PoolParams(kind="diffusion", execution=Execution(sp=4, cfg_parallel=True)).devices == 8
