from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from headway.bench.outcome import Outcome
from headway.bench.twin import Overheads, Twin, fleet_params, overheads, public_id, read_run, sent, simulate
from headway.core.errors import ConfigError
from headway.core.events import RequestArrived, TimerFired
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest, SamplingParams, Slo
from headway.core.units import NS_PER_MS
from headway.cost.llm import StepCostParams
from headway.live.assemble import Recipe
from headway.live.config import Config
from headway.live.eventlog import EventLog
from headway.live.run import CONTROL, FRONT
from headway.live.spec import EngineSettings, ExecutorSettings, LlmSpec, ReplicaSpec
from headway.sched.llm.params import LlmParams
from headway.sim.truth import LinearTruth

LIMITS = ModelLimits(
    "synthetic", 258, 4096, 16, 512, 128, host_slots=0, layers=1, eos_token_ids=(257,), dtype="uint64", device="none"
)
COSTS = Overheads(submit_ns=200_000, tokens_ns=500_000, edge_ns=3_000_000, tail_ns=4_000_000)
TRUTH = LinearTruth(base_ns=10 * NS_PER_MS, token_ns=0.0, kv_ns=0.0)


def recipe(node: str = "rep-0") -> Recipe:
    llm = LlmSpec(None, "", EngineSettings(kind="synthetic"), LlmParams(), StepCostParams(), ExecutorSettings())
    return Recipe(ReplicaSpec(NodeId(node), ModelId("synthetic"), (FRONT, CONTROL), CONTROL, llm), 1, LIMITS)


def arrived(name: str, at_ns: int, slo: Slo = Slo()) -> RequestArrived:  # noqa: B008  frozen
    request = LlmRequest(
        RequestId(f"req-{name}-0123456789abcdef-0"), TenantId("default"), ModelId("synthetic"), (1, 2, 3),
        SamplingParams(max_tokens=3, ignore_eos=True), at_ns, slo,
    )  # fmt: skip
    return RequestArrived(at_ns, "edge", request, at_ns, at_ns)


def test_the_engine_of_the_twin_has_the_sizes_of_the_loaded_one() -> None:
    params = fleet_params(Config(), [recipe("rep-0"), recipe("rep-1")], COSTS)
    assert (params.replicas, params.engine.kv_blocks, params.engine.vocab_size) == (2, 512, 258)


def test_a_client_sees_steps_and_what_live_pays_beside_them() -> None:
    twin = Twin(fleet_params(Config(), [recipe()], COSTS), lambda _: TRUTH, COSTS)
    (seen,) = simulate(twin, sent([arrived("ask-0", 7)], {"ask-0": 50 * NS_PER_MS}), COSTS).values()
    assert seen.sent_ns == 50 * NS_PER_MS
    assert seen.ttft_ns == 10 * NS_PER_MS + COSTS.submit_ns + COSTS.tokens_ns + COSTS.edge_ns
    assert seen.tpot_ns == 10 * NS_PER_MS
    assert seen.ended_ns - seen.sent_ns == 30 * NS_PER_MS + COSTS.submit_ns + COSTS.tokens_ns + COSTS.tail_ns


def test_timers_that_were_replaced_do_not_come_as_in_a_live_run() -> None:
    # SPEC J1
    asked = arrived("ask-0", 7)
    sampling = replace(asked.request.sampling, max_tokens=500)
    asked = replace(asked, request=replace(asked.request, sampling=sampling))
    truth = LinearTruth(base_ns=3 * NS_PER_MS, token_ns=0.0, kv_ns=0.0)
    twin = Twin(fleet_params(Config(), [recipe()], COSTS), lambda _: truth, COSTS)
    simulate(twin, sent([asked], {"ask-0": 50 * NS_PER_MS}), COSTS)
    fired = [turn for turn in twin.sim.log.of(NodeId("rep-0")) if isinstance(turn.event, TimerFired)]
    assert len(fired) == 1  # behind the last step: all others moved on with a report


def test_deadlines_move_with_the_arrival() -> None:
    (item,) = sent([arrived("ask-0", 70, Slo(ttft_deadline_ns=170, tpot_ns=9))], {"ask-0": 1_000})
    assert (item.request.arrived_ns, item.request.slo) == (1_000, Slo(ttft_deadline_ns=1_100, tpot_ns=9))


def test_requests_keep_the_order_of_their_plan() -> None:
    items = sent([arrived("b", 5), arrived("a", 9)], {"a": 1, "b": 2})
    assert [public_id(item.request.id) for item in items] == ["a", "b"]


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \*\.recipe"):
        read_run(tmp_path)


def test_a_run_that_is_its_own_twin_gives_back_its_overheads(tmp_path: Path) -> None:
    twin = Twin(fleet_params(Config(), [recipe()], COSTS), lambda _: TRUTH, COSTS)
    plan = {f"ask-{n}": n * 200 * NS_PER_MS for n in range(1, 5)}
    outcomes: dict[str, Outcome] = simulate(twin, sent([arrived(name, 0) for name in plan], plan), COSTS)
    (tmp_path / "rep-0-1.recipe").write_bytes(msgspec.msgpack.encode(recipe()))
    for node, stem in ((FRONT, FRONT), (NodeId("rep-0"), "rep-0-1")):
        log = EventLog(tmp_path / f"{stem}.events")
        for turn in twin.sim.log.of(node):
            log.write(turn.event, turn.effects)
        log.close()
    assert overheads(read_run(tmp_path), outcomes) == COSTS
