"""Bucket sizes chosen from the steps of an earlier run of the same replica, in processes."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
from tests.integration.live_world import llm_replica, on_loop, running
from tests.integration.test_live_serving import assert_idle, prompts

from headway.core.effects import RunStep
from headway.core.ids import NodeId
from headway.core.plans import StepPlan
from headway.live.assemble import Recipe, build_node
from headway.live.eventlog import read_log, replay
from headway.live.spec import BucketSettings, ReplicaSpec
from headway.sched.executor.sizes import chosen_sizes

SIZES_MAX = 3


def replica(folder: Path, cache: Path) -> ReplicaSpec:
    spec = llm_replica("rep-0", folder)
    assert spec.llm is not None
    executor = msgspec.structs.replace(spec.llm.executor, buckets=BucketSettings("auto", SIZES_MAX))
    return msgspec.structs.replace(spec, llm=msgspec.structs.replace(spec.llm, cache=str(cache), executor=executor))


def serve(spec: ReplicaSpec) -> dict[str, int]:
    """Some requests, with the tokens that they must have; returns the counters of the replica's last report."""
    counters: dict[str, int] = {}

    async def test() -> None:
        async with running(spec) as world:
            requests = [world.request(prompt, 3 + n) for n, prompt in enumerate(prompts(6, 31))]
            answers = await asyncio.gather(*(world.ask(request) for request in requests))
            assert [answer.tokens for answer in answers] == [world.expected(request) for request in requests]
            await assert_idle(world)
            report = world.live.board.replicas[NodeId("rep-0")].report
            assert report is not None
            counters.update(report.counters)

    on_loop(test)
    return counters


def plans(folder: Path) -> list[StepPlan]:
    entries = read_log(folder / "rep-0-1.events")
    found = [effect.plan for entry in entries for effect in entry.effects if isinstance(effect, RunStep)]
    return [plan for plan in found if plan.kind != "dummy"]


def test_the_second_start_pads_to_the_sizes_that_the_first_one_saw(tmp_path: Path) -> None:  # SPEC E1
    sizes, rows = [], []
    for run in ("first", "second"):
        folder = tmp_path / run
        folder.mkdir()
        counters = serve(replica(folder, tmp_path / "cache"))
        ran = plans(folder)
        rows.append(Counter(plan.tokens for plan in ran))
        assert counters["step_padded_rows"] == sum(max(0, plan.bucket - plan.tokens) for plan in ran)
        assert counters["step_rows"] == sum(max(plan.bucket, plan.tokens) for plan in ran)
        recipe = msgspec.msgpack.decode((folder / "rep-0-1.recipe").read_bytes(), type=Recipe)
        assert recipe.spec.llm is not None
        sizes.append(recipe.spec.llm.executor.buckets.rows)
        assert {plan.bucket for plan in ran} <= {0, *sizes[-1]}
        assert replay(build_node(recipe).node, folder / "rep-0-1.events")[1] == []
    assert sizes[1] == chosen_sizes(rows[0], SIZES_MAX)
    assert sizes[1] != sizes[0]
