"""Truth of a diffusion replica: its plans by the catalogue, off by what the scenario says. No policy can reach it."""

from headway.core.draw import draw_unit
from headway.core.errors import InvariantError
from headway.core.ids import NodeId
from headway.core.plans import DenoisePlan, StepPlan
from headway.core.reports import DenoiseCoefficients
from headway.core.units import Ns
from headway.cost.diffusion_belief import plan_ns
from headway.sim.pools import TruthParams


class DenoiseTruth:
    """plan x scale x (1 + spread u(replica)) x slowdown x (1 + jitter u(plan)); prompt encoding and VAE included.

    A plan that prepares the shapes of a pool (numbered below 0), or begins with what has not run there, compiles and
    captures besides.
    """

    def __init__(
        self, cost: DenoiseCoefficients, params: TruthParams, seed: int, replica: NodeId, cold_ns: Ns = 0
    ) -> None:
        """`cold_ns`: of compiling and capturing one shape."""
        self._cost, self._jitter, self._cold_ns = cost, params.jitter, cold_ns
        self._key, self._seed = f"{replica}", seed
        self._scale = params.scale * (1 + params.spread * self._unit(0))
        self.slowdown = 1.0  # of plans from now on: a straggler's

    def _unit(self, place: int) -> float:
        return 2 * draw_unit(self._seed, self._key, 0, place) - 1

    def denoise_ns(self, plan: DenoisePlan) -> Ns:
        """Device time of a batch of denoise steps."""
        factor = self._scale * self.slowdown
        if self._jitter:
            factor *= 1 + self._jitter * self._unit(plan.step)
        is_first = plan.step < 0 or (plan.is_cold and any(row.runs_first for row in plan.rows))
        return round(plan_ns(self._cost, plan) * factor) + (self._cold_ns if is_first else 0)

    def step_ns(self, plan: StepPlan) -> Ns:
        """A diffusion replica runs no LLM step."""
        raise InvariantError(f"step {plan.step}: a replica of a diffusion pool runs no LLM step")

    def host_ns(self, plan: StepPlan) -> Ns:
        """A diffusion replica plans no LLM step."""
        raise InvariantError(f"step {plan.step}: a replica of a diffusion pool plans no LLM step")
