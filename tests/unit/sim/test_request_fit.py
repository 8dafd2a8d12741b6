"""Step times fitted to a log of requests."""

import msgspec
import pytest

from headway.core.draw import draw_below
from headway.core.errors import ConfigError
from headway.cost.fitted import Coefficients, Stamp
from headway.sim.calibration import Origin
from headway.sim.engine_replay import EngineModel, EngineReplay, Served, requests_of, vllm_scheduler
from headway.sim.request_fit import Engine, Search, compare, errors, fit_requests
from headway.workload.request_logs import EngineArguments, Logged

ARGUMENTS = EngineArguments("m", max_num_seqs=16, max_num_batched_tokens=512)
ENGINE = Engine(vllm_scheduler(ARGUMENTS), 16)
ORIGIN = Origin(Stamp(engine="vllm", engine_version="0", device="d", model="m"), "log", "2026-11-29")
TRUTH = Coefficients(base_ns=8e6, token_ns=3e4, row_ns=1e5, kv_ns=100)


def world(kv_tokens: int, count: int = 60) -> list[Logged]:
    """A log of an engine whose coefficients and capacity are known."""
    asked = [
        Logged(f"r{n}", 50 + draw_below(1, "p", 0, n, 400), 20 + draw_below(1, "o", 0, n, 80), n * 20_000_000, 0, 0)
        for n in range(count)
    ]
    engine = EngineReplay(requests_of(asked, "m"), vllm_scheduler(ARGUMENTS), 16)
    served = engine.run(EngineModel(TRUTH.step_ns, lambda rows: 0.0, kv_tokens))
    return [
        msgspec.structs.replace(one, first_token_ns=run.first_token_ns, last_token_ns=run.last_token_ns)
        for one, run in zip(asked, served, strict=True)
    ]


def test_a_log_of_a_known_engine_is_reproduced_on_the_half_that_was_not_seen() -> None:  # SPEC J3
    file = fit_requests(world(100_000), ENGINE, ORIGIN, Search(evaluations=100))
    for metric, error in file.held_out.items():
        assert error.mae < 0.03, metric
        assert error.samples == 30
    assert file.kv_tokens is None
    assert "kv_tokens is not identified" in file.notes[0]


# aiconfigurator#1396: a model that admits a batch that the engine cannot hold is far off.
def test_a_capacity_that_binds_is_found() -> None:
    file = fit_requests(world(2_400), ENGINE, ORIGIN, Search(evaluations=100))
    assert file.kv_tokens == pytest.approx(2_400, rel=0.1)
    assert file.held_out["e2e"].mae < 0.05
    assert file.held_out["tpot"].mae < 0.15  # single requests: whom a full pool preempts hangs on little


# LLMServingSim PR#59: e2e alone hides errors that cancel.
def test_errors_of_ttft_and_tpot_show_where_those_of_e2e_cancel() -> None:
    log = [Logged("r", 10, 11, 0, 100, 1100)] * 3
    late = [msgspec.structs.replace(one, first_token_ns=200) for one in log]
    found = errors(compare(late, [Served(100, 1100)] * 3))
    assert found["e2e"].mean == 0
    assert found["ttft"].mean == pytest.approx(-0.5)
    assert found["tpot"].mean == pytest.approx(1000 / 900 - 1)


def test_a_single_token_has_no_tpot() -> None:
    assert "tpot" not in errors(compare([Logged("r", 10, 1, 0, 100, 100)], [Served(100, 100)]))


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="39 requests; 40 at least"):
        fit_requests(world(100_000, 39), ENGINE, ORIGIN, Search())
