"""The live driver with real processes and sockets: what the simulation proves of the nodes holds here too."""

import asyncio
import os
import random
import signal
from pathlib import Path

import msgspec
import pytest
from tests.integration.live_world import MODEL, PICTURES, World, diffusion_replica, llm_replica, on_loop, running

from headway.adapters.gateway.ports import ModelCard
from headway.core.effects import Effect
from headway.core.errors import EngineError, InvariantError
from headway.core.events import Event, RequestArrived
from headway.core.ids import NodeId
from headway.core.request import FinishReason
from headway.live.assemble import Recipe, build_node
from headway.live.clock import Clock
from headway.live.eventlog import replay
from headway.live.run import FRONT, Live, Plan
from headway.live.spec import SupervisorSettings
from headway.live.stores import TelemetrySettings
from headway.live.wire import Hello, encode
from headway.sched.nodes import FrontConfig, FrontNode
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room


def prompts(count: int, seed: int) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    shared = tuple(draw.randrange(256) for _ in range(64))
    return [
        (shared if draw.random() < 0.5 else ()) + tuple(draw.randrange(256) for _ in range(draw.randrange(1, 120)))
        for _ in range(count)
    ]


async def assert_idle(world: World) -> None:
    await world.until(lambda: not world.held(), "the ledger is back to zero")
    world.live.check()


def test_two_replicas_answer_as_each_request_would_alone() -> None:
    # SPEC B7, L-1
    async def test() -> None:
        front = FrontConfig(router=PolicyChoice("least_requests"), room=Room(engine_queue_ms=50.0, cold_requests=2))
        async with running(llm_replica("rep-0"), llm_replica("rep-1"), front=front) as world:
            requests = [world.request(prompt, 1 + number % 40) for number, prompt in enumerate(prompts(60, 1))]
            answers = await asyncio.gather(*(world.ask(request) for request in requests))
            for request, answer in zip(requests, answers, strict=True):
                assert answer.tokens == world.expected(request)
                assert answer.end.reason is FinishReason.LENGTH
            used = {world.serving.evidence(request.id).replica for request in requests}  # type: ignore[union-attr]
            assert used == {NodeId("rep-0"), NodeId("rep-1")}
            await assert_idle(world)

    on_loop(test)


@pytest.mark.parametrize("depth", [1, 2])
def test_step_credits_do_not_change_the_tokens(depth: int) -> None:
    # SPEC B6, B7
    async def test() -> None:
        async with running(llm_replica("rep-0", depth=depth)) as world:
            requests = [world.request(prompt, 30) for prompt in prompts(12, 2)]
            answers = await asyncio.gather(*(world.ask(request) for request in requests))
            assert [answer.tokens for answer in answers] == [world.expected(request) for request in requests]

    on_loop(test)


def test_evidence_of_every_request_adds_up() -> None:
    # SPEC I1, I2
    async def test() -> None:
        async with running(llm_replica("rep-0")) as world:
            requests = [world.request(prompt, 20) for prompt in prompts(20, 3)]
            await asyncio.gather(*(world.ask(request) for request in requests))
            for request in requests:
                record = world.serving.evidence(request.id)
                assert record is not None
                assert sum(record.segments.values()) == pytest.approx(record.e2e_ms, rel=0.01)
                assert record.segments.get("other", 0.0) <= 0.02 * record.e2e_ms + 0.5
                assert record.steps_done > 0
                assert [decision.kind for decision in record.decisions].count("route") == 1

    on_loop(test)


def test_clients_that_leave_at_random_points_leave_nothing_behind() -> None:
    # SPEC B5, B8, L-2
    async def test() -> None:
        async with running(llm_replica("rep-0"), llm_replica("rep-1")) as world:
            draw = random.Random(4)
            requests = [world.request(prompt, 200) for prompt in prompts(50, 4)]
            answers = await asyncio.gather(
                *(world.ask(request, leave_after=draw.choice([0, 1, 5, 50, None])) for request in requests)
            )
            for request, answer in zip(requests, answers, strict=True):
                assert answer.tokens == world.expected(request)[: len(answer.tokens)]
                assert answer.end.reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
            loop = asyncio.get_running_loop()
            left = loop.time()
            await assert_idle(world)
            assert loop.time() - left < 2.0

    on_loop(test)


def test_a_killed_replica_is_noticed_and_started_again_and_its_requests_go_on_elsewhere() -> None:
    # SPEC A11, B7
    async def test() -> None:
        async with running(llm_replica("rep-0", step_us=3000.0), llm_replica("rep-1", step_us=3000.0)) as world:
            requests = [world.request(prompt, 150) for prompt in prompts(24, 5)]
            asked = asyncio.gather(*(world.ask(request) for request in requests))
            await world.until(lambda: "replica/rep-0/kv_blocks" in world.held(), "rep-0 works")
            os.kill(world.live.supervisor.pids()[NodeId("rep-0")], signal.SIGKILL)
            answers = await asked
            for request, answer in zip(requests, answers, strict=True):
                assert answer.tokens == world.expected(request)
                assert answer.end.reason is FinishReason.LENGTH
            back = world.live.board.replicas[NodeId("rep-0")]
            await world.until(lambda: back.incarnation == 2, "rep-0 is back")
            assert any("SIGKILL" in line for _, line in world.lines)
            assert (await world.ask(world.request((1, 2, 3), 5))).end.reason is FinishReason.LENGTH
            await assert_idle(world)

    on_loop(test)


def test_the_only_replica_killed_comes_back_and_its_requests_resume_exactly() -> None:
    # SPEC A11, B7
    async def test() -> None:
        async with running(llm_replica("rep-0", step_us=3000.0)) as world:
            requests = [world.request(prompt, 150) for prompt in prompts(8, 6)]
            asked = asyncio.gather(*(world.ask(request) for request in requests))
            await world.until(lambda: "replica/rep-0/kv_blocks" in world.held(), "rep-0 works")
            os.kill(world.live.supervisor.pids()[NodeId("rep-0")], signal.SIGKILL)
            answers = await asked
            assert [answer.tokens for answer in answers] == [world.expected(request) for request in requests]
            await assert_idle(world)

    on_loop(test)


def test_a_replica_that_hangs_is_noticed_by_its_silence_and_replaced() -> None:
    # SPEC A11
    async def test() -> None:
        async with running(llm_replica("rep-0"), llm_replica("rep-1"), silence_s=2.0) as world:
            os.kill(world.live.supervisor.pids()[NodeId("rep-0")], signal.SIGSTOP)
            board = world.live.board.replicas[NodeId("rep-0")]
            await world.until(lambda: board.incarnation == 2, "rep-0 is back")
            assert any("silent" in line for _, line in world.lines)
            answer = await world.ask(world.request((1, 2, 3), 5))
            assert answer.end.reason is FinishReason.LENGTH

    on_loop(test)


def test_a_stranger_and_a_babbling_peer_harm_nobody() -> None:
    # SPEC M5
    async def test() -> None:
        async with running(llm_replica("rep-0")) as world:
            known, unknown = encode(Hello(NodeId("rep-0"), 1)), encode(Hello(NodeId("x"), 1))
            for raw in (b"GET / HTTP/1.1\r\n\r\n", known, unknown, b""):
                reader, writer = await asyncio.open_unix_connection(world.live.supervisor.socket)
                writer.write(raw)
                writer.write_eof()
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
            answer = await world.ask(world.request((1, 2, 3), 5))
            assert answer.end.reason is FinishReason.LENGTH
            assert world.live.board.replicas[NodeId("rep-0")].incarnation == 1

    on_loop(test)


def test_a_replica_that_cannot_start_ends_the_start_with_its_reason() -> None:
    async def test() -> None:
        spec = llm_replica("rep-0")
        assert spec.llm is not None
        scheduler = msgspec.structs.replace(spec.llm.scheduler, watermark=10_000)
        broken = msgspec.structs.replace(spec, llm=msgspec.structs.replace(spec.llm, scheduler=scheduler))
        with pytest.raises(EngineError, match=r"rep-0 cannot start: watermark = 10000"):
            async with running(broken):
                pass

    on_loop(test)


def test_a_replica_that_keeps_dying_stays_down_and_the_system_says_why() -> None:
    async def test() -> None:
        async with running(llm_replica("rep-0"), restarts_max=1) as world:
            board = world.live.board.replicas[NodeId("rep-0")]
            run = asyncio.ensure_future(world.live.run())
            for incarnation in (1, 2):
                await world.until(lambda wanted=incarnation: board.incarnation == wanted, f"life {incarnation}")
                os.kill(world.live.supervisor.pids()[NodeId("rep-0")], signal.SIGKILL)
            with pytest.raises(EngineError, match="no replica is left"):
                await asyncio.wait_for(run, 20)
            is_ready, why = world.serving.ready()
            assert not is_ready
            assert "SIGKILL" in why

    on_loop(test)


def test_a_bug_in_the_front_costs_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(llm_replica("rep-0")) as world:
            front = world.live.front
            handle, broken = front.handle, world.request((1, 2), 3)

            def faulty(event: Event) -> list[Effect]:
                if isinstance(event, RequestArrived) and event.request.id == broken.id:
                    raise InvariantError("a bug")
                return handle(event)

            monkeypatch.setattr(front, "handle", faulty)
            end = (await world.ask(broken)).end
            assert end.error is not None
            assert (end.error.status, end.error.code) == (500, "internal_error")
            assert (await world.ask(world.request((1, 2), 3))).end.reason is FinishReason.LENGTH
            await assert_idle(world)

    on_loop(test)


def test_a_recorded_run_replayed_through_fresh_nodes_gives_equal_effects(tmp_path: Path) -> None:
    # SPEC J1, J6
    front = FrontConfig(
        router=PolicyChoice("least_requests"), room=Room(engine_queue_ms=50.0, cold_requests=2)
    )  # both replicas have something to replay
    replicas = llm_replica("rep-0", tmp_path), llm_replica("rep-1", tmp_path)

    async def test() -> None:
        async with running(*replicas, folder=tmp_path, front=front) as world:
            requests = [world.request(prompt, 40) for prompt in prompts(30, 7)]
            await asyncio.gather(*(world.ask(r, leave_after=5 if n % 7 == 0 else None) for n, r in enumerate(requests)))
            await assert_idle(world)

    on_loop(test)
    turns, differences = replay(FrontNode(FRONT, front), tmp_path / f"{FRONT}.events")
    assert differences == []
    assert turns > 30
    for name in ("rep-0", "rep-1"):
        recipe = msgspec.msgpack.decode((tmp_path / f"{name}-1.recipe").read_bytes(), type=Recipe)
        turns, differences = replay(build_node(recipe).node, tmp_path / f"{name}-1.events")
        assert differences == []
        assert turns > 30


def test_a_model_is_served_as_soon_as_its_own_replica_is_ready() -> None:  # SPEC M2
    async def test() -> None:
        late = diffusion_replica("rep-1")
        card = ModelCard(PICTURES, ("image",), 0, 0, 0, 0)
        plan = Plan(
            (llm_replica("rep-0"), late),
            FrontConfig(),
            None,
            TelemetrySettings(),
            SupervisorSettings(drain_s=1.0),
            pictures=(card,),
        )
        live = Live(plan, Clock(), lambda node, line: None)
        served = live.serving
        assert [model.id for model in served.starting()] == [MODEL, PICTURES]
        seen: list[tuple[list[str], list[str]]] = []
        known = live.board.on_ready

        def note() -> None:
            known()
            seen.append(([one.id for one in served.models()], [one.id for one in served.starting()]))

        live.board.on_ready = note
        try:
            await asyncio.wait_for(live.start(), 60)
        finally:
            await live.stop()
        first, last = seen
        assert len(first[0]) == len(first[1]) == 1
        assert sorted((*first[0], *first[1])) == sorted((MODEL, PICTURES))
        assert last == ([MODEL, PICTURES], [])

    on_loop(test)
