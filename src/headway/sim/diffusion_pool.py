"""The replicas of a pool of kind `diffusion`: nodes as they serve, truths that they cannot see."""

import msgspec

from headway.core.errors import ConfigError
from headway.core.ids import NodeId
from headway.core.ports import Node
from headway.core.reports import DenoiseCoefficients, WarmShape
from headway.core.request import DenoiseShape
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.diffusion_devices import batch_pixels_fit, coefficients, pixels_fit, work_memory
from headway.sched.config import Membership
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams, largest_batch
from headway.sched.diffusion.warming import Stock
from headway.sched.diffusion.warmth import Warmth
from headway.sched.nodes import DiffusionNode
from headway.sim.catalogue import Catalogue
from headway.sim.denoise_truth import DenoiseTruth
from headway.sim.driver import Machine
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.orchestrator import shape_ns, start_ns
from headway.sim.painter import Painter
from headway.sim.pools import PoolParams


def denoise_cost(pool: PoolParams, catalogue: Catalogue) -> DenoiseCoefficients:
    """Return what the catalogues say of a pool's model on its devices. Raises ConfigError."""
    hardware, run = pool.hardware, pool.execution
    if hardware.devices > 1:
        raise ConfigError(
            f"pool {pool.name}: a denoiser is not split by hardware.tp, pp, cp or dp ({hardware.devices} devices); "
            "set execution.sp to the devices of its sequence-parallel group, or raise replicas"
        )
    return coefficients(catalogue.denoiser(pool.model), catalogue.chip(hardware.device, hardware.link), run)


def machine_params(pool: PoolParams, catalogue: Catalogue) -> DiffusionParams:
    """Return the scheduler's settings with the largest request and batch that fit. Raises ConfigError."""
    device = catalogue.device(pool.hardware.device)
    fits = pixels_fit(catalogue.denoiser(pool.model), device, pool.execution, pool.engine.memory_share)
    asked = pool.diffusion.pixels_max
    if fits < 1 or (asked is not None and asked > fits):
        raise ConfigError(
            f"pool {pool.name}: {pool.model} on {device.name} decodes at most {max(fits, 0)} pixels at once beside its "
            f"weights, diffusion.pixels_max = {asked}; raise execution.vae_tiles, offload the text encoders "
            "(execution.text_resident = false), use fp8 or a larger device"
        )
    model, share, cap = catalogue.denoiser(pool.model), pool.engine.memory_share, pool.diffusion.batch_pixels_max
    room = batch_pixels_fit(model, device, pool.execution, model.passes, share)
    return msgspec.structs.replace(
        pool.diffusion, pixels_max=asked or fits, batch_pixels_max=room if cap is None else min(cap, room)
    )


class DiffusionPool:
    """The replicas of one entry of `pools`."""

    kv_blocks = 0  # of a replica: it has no KV

    def __init__(self, params: PoolParams, catalogue: Catalogue, seed: int) -> None:
        """`seed`: the scenario's. Raises ConfigError for what fits nowhere."""
        device = catalogue.device(params.hardware.device)
        self.params = params
        self.replicas = [NodeId(f"rep-{params.name}-{place}") for place in range(params.places)]
        self.cost = denoise_cost(params, catalogue)
        self.price_per_hour = device.price_per_hour * self.cost.devices  # of one replica, in USD
        cold_ns = shape_ns(params)
        self.truths = {node: DenoiseTruth(self.cost, params.truth, seed, node, cold_ns) for node in self.replicas}
        self._machine = machine_params(params, catalogue)
        denoiser, share = catalogue.denoiser(params.model), params.engine.memory_share
        self._warm = None if params.warm is None else tuple(self._whole(one.shape) for one in params.warm)
        self._memory = work_memory(denoiser, device, params.execution, share)
        fit = pixels_fit(denoiser, device, params.execution, share)
        self._stock = Stock(tuple(shape.shape for shape in params.shapes), pixels_fit=fit)
        self.cold_start_ns = start_ns(params, denoiser.weight_bytes)
        self.build(0, 1)  # what the scheduler refuses is said now, not when the simulation runs

    def _whole(self, shape: DenoiseShape) -> WarmShape:
        """In batches of every size, as a server warms what its configuration names."""
        return WarmShape(shape.height, shape.width, shape.frames, largest_batch(self._machine, shape))

    def build(self, place: int, incarnation: int) -> Node:
        """Build a replica's node as the simulation does, for a replay."""
        params = self.params
        node = self.replicas[place]
        holdings = Holdings(node, self._memory, self.cost)
        warmth = Warmth(self._warm, refuses_new=self._machine.new_shapes == "refuse")
        machine = DiffusionMachine(self._machine, DenoiseCost(self.cost, params.denoise), holdings, warmth)
        member = Membership(node, incarnation, (FRONT, CONTROL), CONTROL)
        return DiffusionNode(member, machine, params.model, params.worker, self._stock)

    def machine(self, place: int) -> Machine:
        """What the simulation needs to start a replica."""
        truth = self.truths[self.replicas[place]]
        return Machine(lambda incarnation: self.build(place, incarnation), truth=truth, painter=Painter)
