"""The walking skeleton live: FrontNode and ControlNode here, two LLM replicas and a diffusion replica in processes.

The claims are those of the simulation (tests/sim/test_skeleton.py, test_group.py), over real sockets.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import msgspec
import pytest
from tests.integration.live_world import diffusion_replica, llm_replica, on_loop, running
from tests.integration.test_live_serving import assert_idle, prompts
from tests.integration.test_live_transfer import Moves

from headway.core.effects import RunStep
from headway.core.ids import GroupId, NodeId
from headway.core.request import FinishReason
from headway.live.assemble import Recipe, build_node
from headway.live.eventlog import read_log, replay
from headway.live.run import CONTROL, FRONT
from headway.sched.fleet.migration import MigrationParams
from headway.sched.nodes import ControlNode, FrontConfig, FrontNode
from headway.sched.router.machine import PdPools
from headway.sched.runtime.group import GroupParams

A, B, PAINTER = NodeId("rep-0"), NodeId("rep-1"), NodeId("rep-diffusion-0")
GROUP = GroupParams(GroupId("group-0"), (A, B), deadline_ms=5000.0)
SPLIT = FrontConfig(pools=PdPools(prefill=(A,), decode=(B,), prompt_tokens_min=20))
EAGER = MigrationParams(gain_tokens_min=60, cooldown_s=0.02)


def test_a_picture_is_painted_and_one_that_nobody_waits_for_stops() -> None:
    # SPEC L-1, H2
    async def test() -> None:
        async with running(diffusion_replica("rep-diffusion-0")) as world:
            picture, left = world.picture(20), world.picture(100_000)
            waiting = asyncio.ensure_future(world.ask(left))
            end = (await world.ask(picture)).end
            assert end.reason is FinishReason.STOP
            assert end.marks is not None
            assert end.marks.device_ns > 0
            world.serving.cancel(left.id)
            assert (await waiting).end.reason is FinishReason.CANCELLED
            await assert_idle(world)
            record = world.serving.evidence(picture.id)
            assert record is not None
            assert record.steps_done == 20

    on_loop(test)


@pytest.mark.parametrize("depth", [1, 2])
def test_whatever_happens_clients_get_the_reference_and_nothing_leaks(depth: int, tmp_path: Path) -> None:
    # SPEC B7, B8, C4, A11, L-2
    async def test() -> None:
        replicas = [
            llm_replica("rep-0", tmp_path, 1500.0, depth),
            llm_replica("rep-1", tmp_path, 1500.0, depth),
            diffusion_replica("rep-diffusion-0", tmp_path),
        ]
        async with running(*replicas, front=SPLIT, migration=EAGER, folder=tmp_path) as world:
            moves, draw = Moves(world), random.Random(depth)
            texts = [world.request(prompt, draw.randrange(2, 120)) for prompt in prompts(40, 20 + depth)]
            pictures = [world.picture(draw.randrange(1, 9), 32 << draw.randrange(2)) for _ in range(10)]
            leaving = {text.id: draw.randrange(60) for text in texts if draw.random() < 0.12}
            asked = [asyncio.ensure_future(world.ask(text, leaving.get(text.id))) for text in texts]
            painted = [asyncio.ensure_future(world.ask(picture)) for picture in pictures]
            for number, text in enumerate(texts):
                source, destination = (A, B) if number % 2 else (B, A)
                moves.order(text, source, destination)
                if number == 20:
                    os.kill(world.live.supervisor.pids()[A], signal.SIGKILL)
                    os.kill(world.live.supervisor.pids()[PAINTER], signal.SIGKILL)
                await asyncio.sleep(0)
            for text, answer in zip(texts, await asyncio.gather(*asked), strict=True):
                assert answer.tokens == world.expected(text)[: len(answer.tokens)]
                if text.id not in leaving:
                    assert answer.tokens == world.expected(text)
            assert {answer.end.reason for answer in await asyncio.gather(*painted)} == {FinishReason.STOP}
            for killed in (A, PAINTER):
                board = world.live.board.replicas[killed]
                await world.until(lambda board=board: board.incarnation == 2, f"{killed} is back")  # type: ignore[misc]  # mypy cannot infer it
            await assert_idle(world)
            for text in texts:
                assert world.serving.evidence(text.id) is not None

    on_loop(test)
    nodes = {FRONT: FrontNode(FRONT, SPLIT), CONTROL: ControlNode(CONTROL, EAGER)}
    for name, node in nodes.items():
        assert replay(node, tmp_path / f"{name}.events")[1] == []
    recipes = sorted(tmp_path.glob("*.recipe"))
    assert {path.stem for path in recipes} >= {"rep-0-2", "rep-1-1", "rep-diffusion-0-2"}
    for path in recipes:
        recipe = msgspec.msgpack.decode(path.read_bytes(), type=Recipe)
        assert replay(build_node(recipe).node, path.with_suffix(".events"))[1] == []


def test_two_ranks_run_the_same_padded_steps_and_change_no_token(tmp_path: Path) -> None:
    # SPEC D2, B7
    async def test() -> None:
        ranks = [llm_replica(name, tmp_path, group=GROUP) for name in ("rep-0", "rep-1")]
        async with running(*ranks) as world:
            requests = [world.request(prompt, 3 + n % 25) for n, prompt in enumerate(prompts(16, 31))]
            answers = await asyncio.gather(*(world.ask(request) for request in requests))
            assert [answer.tokens for answer in answers] == [world.expected(request) for request in requests]
            alone = world.request((1, 2, 3), 30)
            assert (await world.ask(alone)).tokens == world.expected(alone)
            await assert_idle(world)

    on_loop(test)
    buckets = {}
    kinds = {}
    for name in ("rep-0", "rep-1"):
        plans = list(_plans(tmp_path / f"{name}-1.events"))
        buckets[name] = [bucket for _, bucket in plans]
        kinds[name] = [kind for kind, _ in plans]
    assert buckets["rep-0"] == buckets["rep-1"]
    assert len(buckets["rep-0"]) > 30
    assert any("dummy" in kinds[name][-30:] for name in kinds), "the rank without work joins with a dummy"


def test_a_group_that_lost_a_rank_is_rebuilt_and_goes_on() -> None:
    # SPEC D2, A11
    async def test() -> None:
        ranks = [llm_replica(name, step_us=1500.0, group=GROUP) for name in ("rep-0", "rep-1")]
        async with running(*ranks) as world:
            requests = [world.request(prompt, 100) for prompt in prompts(12, 32)]
            asked = asyncio.gather(*(world.ask(request) for request in requests))
            await world.until(lambda: "replica/rep-0/kv_blocks" in world.held(), "the group works")
            os.kill(world.live.supervisor.pids()[B], signal.SIGKILL)
            answers = await asked
            assert [answer.tokens for answer in answers] == [world.expected(request) for request in requests]
            await assert_idle(world)

    on_loop(test)


def _plans(path: Path) -> list[tuple[str, int]]:
    return [
        (effect.plan.kind, effect.plan.bucket)
        for entry in read_log(path)
        for effect in entry.effects
        if isinstance(effect, RunStep)
    ]
