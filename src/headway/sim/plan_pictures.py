"""Which layouts a plan tries for a diffusion model: device types and sequence-parallel sizes (SPEC F3)."""

from collections.abc import Sequence
from itertools import product

import msgspec

from headway.core.errors import ConfigError
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest, Slo
from headway.core.units import NS_PER_S
from headway.cost.diffusion import decode_ns, devices_needed, encode_ns, stages, step_ns
from headway.sim.catalogue import Catalogue
from headway.sim.diffusion_pool import denoise_cost, machine_params
from headway.sim.plan_layouts import Layout, Part, Refused
from headway.sim.plan_load import Load, kept_share, lightest
from headway.sim.plan_params import PlanParams
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario


class PictureSpace:
    """The layouts of a diffusion pool. `capacity`: devices by SPEC F3, rate times GPU-seconds, without queues."""

    def __init__(self, scenario: Scenario, plan: PlanParams, load: Load, template: PoolParams) -> None:
        self._scenario, self._plan, self._load, self._template = scenario, plan, load, template
        self._catalogue = Catalogue(scenario.catalogue)
        self.refused: list[Refused] = []
        self.capacity: dict[str, float] = {}

    def layouts(self) -> list[Layout]:
        """Return what can work; what cannot is in `refused`."""
        found = []
        template = self._template
        for device, sp in product(self._plan.devices or (template.hardware.device,), self._plan.sp):
            name = f"{device} SP{sp}"
            execution = msgspec.structs.replace(template.execution, sp=sp)
            hardware = msgspec.structs.replace(template.hardware, device=device)
            pool = msgspec.structs.replace(template, hardware=hardware, execution=execution, replicas=1)
            try:
                found.append(Layout(name, "diffusion", (self._part(pool, name),)))
            except ConfigError as error:
                self.refused.append(Refused(name, str(error)))
        return found

    def _part(self, pool: PoolParams, name: str) -> Part:
        plan, rate, pictures = self._plan, self._load.rate_per_s, self._load.pictures
        cost = denoise_cost(pool, self._catalogue)
        machine_params(pool, self._catalogue)
        truth = pool.truth
        self._check_alone(cost, truth.scale * (1 - truth.spread) * (1 - truth.jitter))
        seconds = [stages(cost, picture).total for picture in pictures]
        self.capacity[name] = devices_needed(rate, sum(seconds) / len(seconds) * cost.devices)
        shared = [shared_s(cost, picture, pool.diffusion.batch_max) for picture in pictures]
        slower = truth.scale * (1 - truth.spread)
        least = rate * lightest(shared, kept_share(self._scenario, plan)) * slower
        replicas = max(1, -int(-least // 1))
        if replicas * pool.devices > plan.devices_max:
            raise ConfigError(
                f"the load alone needs {replicas * pool.devices} devices, plan.devices_max = {plan.devices_max}"
            )
        price = plan.prices.get(pool.hardware.device, self._catalogue.device(pool.hardware.device).price_per_hour)
        return Part(pool, price * pool.devices, replicas, "GPU-seconds")

    def _check_alone(self, cost: DenoiseCoefficients, fastest: float) -> None:
        pictures = self._load.pictures
        late = sum(_is_late(self._slo(picture), picture, stages(cost, picture).total * fastest) for picture in pictures)
        if late > (1 - self._plan.attainment) * len(pictures):
            raise ConfigError(f"e2e: {late / len(pictures):.0%} of the requests are late alone on a replica")

    def _slo(self, picture: DiffusionRequest) -> Slo:
        if picture.slo != Slo():
            return picture.slo
        return self._scenario.targets_of(picture.tenant).slo(picture.arrived_ns)


def _is_late(slo: Slo, picture: DiffusionRequest, seconds: float) -> bool:
    due = [at_ns for at_ns in (slo.ttft_deadline_ns, slo.e2e_deadline_ns) if at_ns is not None]
    return bool(due) and picture.arrived_ns + seconds * NS_PER_S > min(due)


def shared_s(cost: DenoiseCoefficients, picture: DiffusionRequest, batch_max: int) -> float:
    """Least device time of a request, in seconds, when it shares its steps with as many alike as a batch takes."""
    own = encode_ns(cost, picture.shape) + decode_ns(cost, picture.shape, picture.n)
    batches: Sequence[int] = range(1, max(1, batch_max // picture.n) + 1)
    step = min(step_ns(cost, picture.shape, picture.n * batch) / batch for batch in batches)
    return (own + picture.steps * step) / NS_PER_S
