import msgspec
import pytest
from tests.integration.live_world import diffusion_replica, llm_replica

from headway.core.effects import Send
from headway.core.errors import ConfigError
from headway.core.events import MessageArrived, PeerJoined
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Report, Submit
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.cost.llm import MeasuredStep, StepShape, pairs, step_ns
from headway.live.assemble import Recipe, build_node, load_llm
from headway.live.spec import LlmSpec, ReplicaSpec


def recipe(spec: ReplicaSpec) -> Recipe:
    limits = None if spec.llm is None else load_llm(spec, spec.llm, lambda: 0, lambda *told: None).limits
    return Recipe(spec, 1, limits)


def changed(spec: ReplicaSpec, **changes: object) -> ReplicaSpec:
    assert spec.llm is not None
    return msgspec.structs.replace(spec, llm=msgspec.structs.replace(spec.llm, **changes))


def llm(spec: ReplicaSpec) -> LlmSpec:
    assert spec.llm is not None
    return spec.llm


@pytest.mark.parametrize("spec", [llm_replica("rep-0"), diffusion_replica("rep-1")])
def test_a_recipe_survives_its_file_and_builds_a_node_of_that_name(spec: ReplicaSpec) -> None:
    # SPEC J1
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(recipe(spec)), type=Recipe)
    assert read == recipe(spec)
    assert build_node(read).node.id == spec.node


def test_a_node_is_idle_until_it_holds_a_request() -> None:
    built = build_node(recipe(llm_replica("rep-0")))
    assert built.is_idle()
    sampling = SamplingParams(max_tokens=1)
    request = LlmRequest(RequestId("req-1"), TenantId("t"), ModelId("synthetic"), (1,), sampling, 0)
    built.node.handle(MessageArrived(1, "test", NodeId("front"), Submit(request, 1)))
    assert not built.is_idle()


# SPEC A7, J3
def test_the_first_report_of_a_fresh_llm_tells_what_its_warm_up_measured() -> None:
    prefill = MeasuredStep(StepShape(0, 0, 200, pairs(0, 200), 1, 200), 2 * NS_PER_S)
    decodes = [MeasuredStep(StepShape(1, 200 + n), 40 * NS_PER_MS) for n in range(4)]
    built = build_node(msgspec.structs.replace(recipe(llm_replica("rep-0")), steps=(prefill, *decodes)))
    joined = built.node.handle(PeerJoined(1, "test", NodeId("front"), 1))
    told = next(one.message.report for one in joined if isinstance(one, Send) and isinstance(one.message, Report))
    assert (told.prefill_tokens_per_s, told.step_ns) == (100.0, 40 * NS_PER_MS)
    assert told.step_cost is not None
    assert told.step_cost == built.step_cost
    for step in (prefill, decodes[0]):
        assert step_ns(told.step_cost, step.shape) == pytest.approx(step.took_ns, rel=0.1)  # a fit to five steps


def test_a_replica_without_a_part_is_refused() -> None:
    empty = msgspec.structs.replace(llm_replica("rep-0"), llm=None)
    with pytest.raises(ConfigError, match="rep-0 has neither"):
        build_node(recipe(empty))


def test_step_credits_follow_the_scheduler_so_that_a_pace_that_needs_two_is_refused_with_one() -> None:
    # SPEC B6
    spec = llm_replica("rep-0", depth=1)
    pace = msgspec.structs.replace(llm(spec).executor.pace, type="just_in_time")
    executor = msgspec.structs.replace(llm(spec).executor, pace=pace)
    with pytest.raises(ConfigError, match="needs credits >= 2"):
        build_node(recipe(changed(spec, executor=executor)))


def test_a_torch_engine_needs_a_folder() -> None:
    pytest.importorskip("torch")
    spec = llm_replica("rep-0")
    engine = msgspec.structs.replace(llm(spec).engine, kind="torch")
    with pytest.raises(ConfigError, match="needs a model folder"):
        load_llm(spec, llm(changed(spec, engine=engine)), lambda: 0, lambda *told: None)
