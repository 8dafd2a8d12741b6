"""A log of vLLM 0.19, reproduced by the scheduler that serves here.

300 requests of LLMServingSim's bench (MIT licence, see `meta.json`): Llama-3.1-8B on an RTX PRO 6000. Coefficients were
fitted to the first 150 (`examples/costs`); the last 150 are what is judged, TTFT and TPOT each: e2e hides errors that
cancel (# LLMServingSim PR#59). The run is saturated, where errors of capacity show (# LLMServingSim#40,
# inference-sim#482).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.sim.systems import EXACT, Kept

from headway.core.ids import RequestId
from headway.core.units import NS_PER_S, Ns
from headway.cost.fitted import CostFile, HeldOut, LinearStep, parse_cost_file
from headway.sched.config import FrontConfig
from headway.sched.registry import PolicyChoice
from headway.sim.engine_replay import EngineModel, EngineReplay, Served, requests_of, vllm_scheduler
from headway.sim.pools import Hardware, PoolParams
from headway.sim.request_fit import METRICS, compare, errors
from headway.sim.scenario import GatewaySettings, NetworkSettings, Scenario
from headway.sim.system import System
from headway.workload.offered import Offered
from headway.workload.request_logs import Logged, read_log_meta, read_request_log

HERE = Path(__file__).parent / "vllm_llama31_8b"
COST = Path(__file__).parents[2] / "examples/costs/vllm-0.19-llama-3.1-8b-rtx-pro-6000.json"
ARGUMENTS = read_log_meta((HERE / "meta.json").read_bytes(), "meta.json").engine_kwargs


@pytest.fixture(scope="module")
def file() -> CostFile:
    return parse_cost_file(COST.read_bytes(), COST.name)


@pytest.fixture(scope="module")
def log() -> list[Logged]:
    return read_request_log((HERE / "requests.jsonl").read_bytes(), "requests.jsonl")


@pytest.fixture(scope="module")
def served(file: CostFile, log: list[Logged]) -> list[Served]:
    step = LinearStep(file)
    engine = EngineReplay(requests_of(log, ARGUMENTS.model), vllm_scheduler(ARGUMENTS), ARGUMENTS.block_size)
    return engine.run(EngineModel(step.step_ns, step.host_ns, 500_000))


@pytest.fixture(scope="module")
def found(served: list[Served], log: list[Logged]) -> dict[str, HeldOut]:
    return errors(compare(log[150:], served[150:]))


@pytest.mark.parametrize("metric", METRICS)
def test_the_half_that_was_not_fitted_is_reproduced(found: dict[str, HeldOut], metric: str) -> None:  # SPEC J3
    error = found[metric]
    assert abs(error.mean) < 0.03  # the target
    assert error.p99 is not None
    assert abs(error.p99) < 0.10
    assert error.mae < 0.03


def test_the_file_says_what_it_was_fitted_to_and_how_well(file: CostFile, found: dict[str, HeldOut]) -> None:
    assert (file.stamp.engine, file.stamp.engine_version, file.samples) == ("vllm", "0.19.0", 150)
    for metric, error in file.held_out.items():
        assert error.mae == pytest.approx(found[metric].mae, abs=0.002), metric  # stamps are rounded to 0.1 ms here


class _Log:
    """The clients of the log, a second later: by then the replica has said that it is there."""

    def __init__(self, log: Sequence[Logged], model: str) -> None:
        self._log, self._model = log, model

    def first(self) -> Iterator[Offered]:
        for request, one in zip(requests_of(self._log, self._model), self._log, strict=True):
            yield Offered(msgspec.structs.replace(request, arrived_ns=one.queued_ns + NS_PER_S), one.output_tokens)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> None:
        return None


def test_front_and_worker_of_a_whole_system_say_the_same(log: list[Logged], served: list[Served]) -> None:  # SPEC J1
    """What was fitted with the machine alone holds with every node around it, to the nanosecond."""
    pool = PoolParams(
        model="llama-3.1-8b",
        hardware=Hardware(device="RTX-PRO-6000"),
        cost=str(COST),
        scheduler=vllm_scheduler(ARGUMENTS),
        truth=EXACT,
    )
    scenario = Scenario(
        pools=(pool,),
        front=FrontConfig(admission=PolicyChoice("open")),
        network=NetworkSettings(node_us=0.0),
        gateway=GatewaySettings(request_us=0.0),
    )
    kept = Kept()
    System(scenario, _Log(log, "llama-3.1-8b"), kept).sim.serve(None)
    seen = {
        offered.request.id: (stream.times_ns[0] - NS_PER_S, stream.times_ns[-1] - NS_PER_S)
        for offered, stream, _ in kept.ended
    }
    assert [seen[RequestId(one.id)] for one in log] == [(one.first_token_ns, one.last_token_ns) for one in served]
