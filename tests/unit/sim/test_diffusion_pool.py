"""Replicas of a diffusion pool from its parameters."""

import pytest
from msgspec.structs import replace

from headway.core.errors import ConfigError
from headway.cost.devices import find_device
from headway.cost.diffusion_devices import Execution, chip
from headway.cost.diffusion_models import diffusion_model
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.nodes import DiffusionNode
from headway.sched.registry import PolicyChoice
from headway.sim.catalogue import Additions, Catalogue
from headway.sim.diffusion_pool import DiffusionPool, denoise_cost, machine_params
from headway.sim.pools import Hardware, PoolParams

CATALOGUE = Catalogue(Additions())
VIDEO = DiffusionParams(pixels_max=81 * 720 * 1280)


def params(**more: object) -> PoolParams:
    fields: dict[str, object] = {"name": "p", "kind": "diffusion", "model": "FLUX.1-dev", "replicas": 2, **more}
    return PoolParams(**fields)  # type: ignore[arg-type]  # fields of PoolParams


def test_replicas_have_the_pools_name_devices_and_price() -> None:
    pool = DiffusionPool(params(execution=Execution(sp=4)), CATALOGUE, seed=0)
    assert pool.replicas == ["rep-p-0", "rep-p-1"]
    assert pool.price_per_hour == 4 * 2.5
    assert sorted(pool.truths) == pool.replicas
    node = pool.build(1, 3)
    assert isinstance(node, DiffusionNode)
    assert node.id == "rep-p-1"


def test_nodes_believe_the_catalogue_and_share_no_belief() -> None:
    pool = DiffusionPool(params(), CATALOGUE, seed=0)
    one, two = (pool.build(place, 1) for place in (0, 1))
    assert isinstance(one, DiffusionNode)
    assert isinstance(two, DiffusionNode)
    assert one.worker.machine.denoise_cost == denoise_cost(params(), CATALOGUE)
    assert one.worker.machine._belief is not two.worker.machine._belief


def test_the_largest_request_is_what_the_vae_can_decode() -> None:  # vllm-omni#2327, FramePack#25
    pool = DiffusionPool(params(), CATALOGUE, seed=0).build(0, 1)
    assert isinstance(pool, DiffusionNode)
    least, most = pool.worker.machine.pixels
    assert least == 0
    assert most is not None
    assert 4096 * 4096 < most < 8192 * 8192
    with pytest.raises(ConfigError, match=r"Wan2.1-14B on H100-SXM decodes at most \d+ pixels at once"):
        DiffusionPool(params(model="Wan2.1-14B", diffusion=VIDEO), CATALOGUE, seed=0)
    with pytest.raises(ConfigError, match="decodes at most 0 pixels at once"):
        DiffusionPool(params(model="Wan2.2-A14B", hardware=Hardware(device="RTX-4090")), CATALOGUE, seed=0)


def test_what_cannot_work_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"pool p: a denoiser is not split by hardware.tp"):
        denoise_cost(params(hardware=Hardware(tp=2)), CATALOGUE)
    with pytest.raises(ConfigError, match=r"order.type is 'lifo'"):
        DiffusionPool(params(diffusion=DiffusionParams(order=PolicyChoice("lifo"))), CATALOGUE, seed=0)
    with pytest.raises(ConfigError, match=r"diffusion model 'llama-3.1-8b' is in no catalogue"):
        DiffusionPool(params(model="llama-3.1-8b"), CATALOGUE, seed=0)


def test_a_scenario_may_add_models_and_what_devices_reach() -> None:  # SPEC J3
    own = replace(diffusion_model("FLUX.1-dev"), name="mine", passes=2)
    reach = chip(find_device("H100-SXM")).reach
    more = Catalogue(Additions(denoisers=(own,), reaches={"B200": reach}))
    cost = denoise_cost(params(model="mine", hardware=Hardware(device="B200")), more)
    assert (cost.passes, cost.devices) == (2, 1)


def test_a_batch_is_as_large_as_its_activations_fit_and_a_cap_only_lowers_it() -> None:  # SPEC F4
    limits = []
    for cap in (None, 1 << 20, 1 << 40):
        pool = params(model="Wan2.1-1.3B", diffusion=DiffusionParams(batch_pixels_max=cap))
        limits.append(machine_params(pool, CATALOGUE).batch_pixels_max)
    derived = limits[0]
    assert derived is not None
    assert derived > 480 * 832 * 81
    assert limits == [derived, 1 << 20, derived]
    less = params(model="Wan2.1-1.3B", hardware=Hardware(device="RTX-4090"), execution=Execution(vae_tiles=8))
    smaller = machine_params(less, CATALOGUE).batch_pixels_max
    assert smaller is not None
    assert smaller < derived / 3
