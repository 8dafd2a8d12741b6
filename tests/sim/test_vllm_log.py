"""A log of vLLM 0.19, reproduced by the scheduler that serves here.

300 requests of LLMServingSim's bench (MIT licence, see `meta.json`): Llama-3.1-8B on an RTX PRO 6000. Coefficients were
fitted to the first 150 (`examples/costs`); the last 150 are what is judged, TTFT and TPOT each: e2e hides errors that
cancel (# LLMServingSim PR#59). The run is saturated, where errors of capacity show (# LLMServingSim#40,
# inference-sim#482).
"""

from pathlib import Path

import pytest

from headway.cost.fitted import CostFile, HeldOut, parse_cost_file
from headway.sim.engine_replay import EngineModel, EngineReplay, requests_of, vllm_scheduler
from headway.sim.request_fit import METRICS, compare, errors
from headway.workload.request_logs import read_log_meta, read_request_log

HERE = Path(__file__).parent / "vllm_llama31_8b"
COST = Path(__file__).parents[2] / "examples/costs/vllm-0.19-llama-3.1-8b-rtx-pro-6000.json"


@pytest.fixture(scope="module")
def file() -> CostFile:
    return parse_cost_file(COST.read_bytes(), COST.name)


@pytest.fixture(scope="module")
def found(file: CostFile) -> dict[str, HeldOut]:
    arguments = read_log_meta((HERE / "meta.json").read_bytes(), "meta.json").engine_kwargs
    log = read_request_log((HERE / "requests.jsonl").read_bytes(), "requests.jsonl")
    engine = EngineReplay(requests_of(log, arguments.model), vllm_scheduler(arguments), arguments.block_size)
    served = engine.run(EngineModel(file.coefficients.step_ns, lambda rows: 0.0, 500_000))
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
