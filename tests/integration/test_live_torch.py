"""The live system on real weights: hand-off, migration and a killed replica change no token (SPEC B7)."""

import asyncio
import importlib.util
import os
import signal

import msgspec
import pytest
from tests.integration.live_world import World, llm_replica, on_loop, running
from tests.integration.test_live_serving import assert_idle
from tests.integration.test_live_transfer import SPLIT, A, B, Moves

from headway.adapters.models import cache_folder, resolve
from headway.adapters.tokenizer import Tokenizer
from headway.core.request import LlmRequest
from headway.live.spec import EngineSettings, ReplicaSpec
from headway.sched.nodes import FrontConfig

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

TEXTS = [
    "The lighthouse keeper counted the ships",
    "List three colours and say where each is found in nature:",
    "Once upon a time, in a small village at the edge of a large forest, there lived",
    "The capital of France is",
    "To make bread you need flour, water, salt and",
    "In 1969 the first humans walked on the moon. They",
]


def torch_replica(name: str) -> ReplicaSpec:
    spec = llm_replica(name)
    assert spec.llm is not None
    engine = EngineSettings(kind="torch", threads=1, kv_blocks=128, max_model_len=512)
    llm = msgspec.structs.replace(spec.llm, folder=str(resolve().folder), cache=str(cache_folder()), engine=engine)
    return msgspec.structs.replace(spec, llm=llm)


def requests(world: World, tokens: int) -> list[LlmRequest]:
    tokenizer = Tokenizer.from_folder(resolve().folder)
    return [world.request(tokenizer.encode(text, add_special_tokens=False), tokens) for text in TEXTS]


async def disturbed(world: World) -> list[list[int]]:
    """Everybody decodes, then moves to the other replica, then one replica is killed."""
    moves = Moves(world)
    asked = requests(world, 48)
    running_ = [asyncio.ensure_future(world.ask(request)) for request in asked]
    await world.until(lambda: all(moves.emitted(request) > 2 for request in asked), "all decode")
    for request in asked:
        source = moves.owner(request)
        if source is not None:
            moves.order(request, source, B if source == A else A)
    await world.until(lambda: any(moved for moved, _ in moves.ended), "a request moved")
    os.kill(world.live.supervisor.pids()[B], signal.SIGKILL)
    return [(await answer).tokens for answer in running_]


def test_moving_handing_off_and_killing_change_no_token() -> None:
    # SPEC B7, C2, C4, A11
    async def test() -> None:
        async with running(torch_replica("rep-0"), torch_replica("rep-1"), front=FrontConfig()) as world:
            alone = [(await world.ask(request)).tokens for request in requests(world, 48)]
            assert len({tuple(tokens) for tokens in alone}) == len(TEXTS)
            assert await disturbed(world) == alone
            await world.until(lambda: world.live.board.replicas[B].incarnation == 2, "rep-1 is back")
            await assert_idle(world)
        async with running(torch_replica("rep-0"), torch_replica("rep-1"), front=SPLIT) as world:
            asked = requests(world, 48)
            answers = await asyncio.gather(*(world.ask(request) for request in asked))
            assert [answer.tokens for answer in answers] == alone
            handed = [world.serving.evidence(request.id) for request in asked]
            # On a busy machine some run into the timeout of a hand-off, and stay.
            assert any(record is not None and record.transfer_bytes for record in handed)
            await assert_idle(world)

    on_loop(test)
