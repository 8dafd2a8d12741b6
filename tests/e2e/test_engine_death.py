"""Engine processes are killed and stopped under load: every request ends, exactly right or with a clean error."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from tests.e2e.serving import Server, children, serve, until
from tests.e2e.wire import Answer, call

CHAT = "/v1/chat/completions"
SLOW_STEPS = ("--engine", "synthetic", "--set", "engine.synthetic.step_us=5000")
QUICK_RESTART = ("--set", "supervisor.restart_backoff_s_max=0.05", "--set", "supervisor.restarts_max=50")
ERROR_CODES = ("engine_lost", "no_replica")


class Outcome(msgspec.Struct, frozen=True):
    """How one request ended: its text, or the code of its error."""

    text: str | None
    code: object = None


def body(number: int, max_tokens: int) -> dict[str, object]:
    """A request of its own kind: greedy and seeded, streams and whole answers, with and without stop strings."""
    return {
        "model": "synthetic",
        "messages": [{"role": "user", "content": f"{number} tell a story " * (1 + number % 40)}],
        "max_tokens": max_tokens,
        "ignore_eos": number % 3 != 0,
        "temperature": 0 if number % 2 else 1,
        "seed": number,
        "stream": number % 4 < 2,
    }


def outcome(answer: Answer) -> Outcome:
    """Read an answer; anything between whole and clean error fails here."""
    assert answer.complete, answer.body[-300:]
    if answer.status != 200:
        return Outcome(None, answer.error()["code"])
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return Outcome(answer.json()["choices"][0]["message"]["content"])  # type: ignore[index]  # JSON
    events = answer.events()
    if events[-1] == "[DONE]":
        assert events.count("[DONE]") == 1
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
        return Outcome("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks))
    assert "[DONE]" not in events
    assert not any("error" in json.loads(event) for event in events[:-1])
    return Outcome(None, json.loads(events[-1])["error"]["code"])


async def ask_all(url: str, bodies: Sequence[dict[str, object]]) -> list[Outcome]:
    """All at once."""
    return [outcome(answer) for answer in await asyncio.gather(*(call(url, CHAT, one) for one in bodies))]


def disturbed(
    server: Server, bodies: Sequence[dict[str, object]], disturb: Callable[[], Awaitable[None]]
) -> list[Outcome]:
    """The outcomes of `bodies` while `disturb` runs, at most as long as they do."""

    async def run() -> list[Outcome]:
        asked = asyncio.create_task(ask_all(server.url, bodies))
        disturbing = asyncio.create_task(disturb())
        await asyncio.wait({asked, disturbing}, return_when=asyncio.FIRST_COMPLETED)
        if disturbing.done():
            disturbing.result()
        outcomes = await asked
        disturbing.cancel()
        return outcomes

    return asyncio.run(run())


def serves_again(server: Server, replicas: int) -> None:
    """The ledger is back to zero and every replica is back."""
    until(lambda: not server.held(), lambda: f"the ledger is back to zero: {server.held()}")
    until(lambda: len(children(server)) == replicas and server.call("/ready")[0] == 200, "every replica is back")
    reporting = [f"replica/rep-{number}/kv_blocks" for number in range(replicas)]
    until(lambda: set(reporting) <= {account["name"] for account in server.accounts()}, "every replica reports")
    status, answer = server.call(CHAT, {**body(1, 8), "stream": False})
    assert status == 200, answer
    assert server.process.poll() is None
    assert not [line for line in server.errors if "Traceback" in line or "broke a node" in line], server.errors


@pytest.mark.parametrize(("replicas", "kills"), [(1, 2), (2, 3), pytest.param(3, 20, marks=pytest.mark.slow)])
def test_killed_engines_lose_no_request_and_change_no_token(replicas: int, kills: int) -> None:
    # SPEC A11, B7
    draw = random.Random(f"kills {replicas}")
    attempts = ("--set", f"front.patience.attempts_max={kills}")
    with serve(*SLOW_STEPS, *QUICK_RESTART, *attempts, "--replicas", str(replicas)) as server:
        bodies = [body(number, 60 + number % 50) for number in range(12 * (1 + kills))]
        undisturbed = asyncio.run(ask_all(server.url, bodies))
        assert all(one.text is not None for one in undisturbed)

        victims: list[int] = []

        async def kill() -> None:
            while len(victims) < kills:
                await asyncio.sleep(draw.uniform(0.05, 0.2))
                running = [pid for pid in children(server) if pid not in victims]
                if running and any("kv_blocks" in name for name in server.held()):
                    victims.append(draw.choice(running))
                    os.kill(victims[-1], signal.SIGKILL)

        outcomes = disturbed(server, bodies, kill)
        assert outcomes == undisturbed  # as many attempts are granted as there are kills
        assert victims
        serves_again(server, replicas)
        assert not set(victims) & set(children(server))


def test_an_engine_that_is_killed_while_it_starts_is_started_again() -> None:
    # SPEC A11
    with serve("--engine", "synthetic", *QUICK_RESTART) as server:
        for _ in range(10):  # before its exec, before its start order, while it imports
            before = children(server)
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            until(lambda before=before: children(server) not in ([], before), "the next one starts")
        serves_again(server, 1)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_stopped_engine_goes_on_where_it_was(replicas: int) -> None:
    # SPEC A11
    with serve(*SLOW_STEPS, "--replicas", str(replicas)) as server:
        bodies = [body(number, 60) for number in range(12)]
        undisturbed = asyncio.run(ask_all(server.url, bodies))
        before = children(server)

        async def stop() -> None:
            await asyncio.sleep(0.1)
            os.kill(before[0], signal.SIGSTOP)
            await asyncio.sleep(1.2)
            assert server.call("/health")[0] == 200
            os.kill(before[0], signal.SIGCONT)

        assert disturbed(server, bodies, stop) == undisturbed
        assert children(server) == before
        serves_again(server, replicas)


def test_an_engine_stopped_for_too_long_is_replaced() -> None:
    # SPEC A11
    with serve(*SLOW_STEPS, *QUICK_RESTART, "--replicas", "2", "--set", "supervisor.heartbeat_timeout_s=1.5") as server:
        bodies = [body(number, 60) for number in range(12)]
        undisturbed = asyncio.run(ask_all(server.url, bodies))
        before = children(server)

        async def stop() -> None:
            await asyncio.sleep(0.1)
            os.kill(before[0], signal.SIGSTOP)

        assert disturbed(server, bodies, stop) == undisturbed
        until(lambda: before[0] not in children(server), "the stopped process is gone")
        serves_again(server, 2)


def test_without_restarts_left_the_rest_serves_and_then_the_server_ends_with_the_reason() -> None:
    # SPEC A11
    last = ("--set", "supervisor.restarts_max=0", "--set", "server.shutdown_s=0.5")
    with serve(*SLOW_STEPS, *last, "--replicas", "2") as server:
        bodies = [body(number, 4000) | {"ignore_eos": True} for number in range(6)]
        first, second = children(server)

        async def kill() -> None:
            while server.held().get("gateway/in_flight") != 6:
                await asyncio.sleep(0.01)
            os.kill(first, signal.SIGKILL)
            while len(children(server)) != 1:
                await asyncio.sleep(0.01)
            assert server.call("/ready")[0] == 200
            assert server.held()["gateway/in_flight"] == 6
            os.kill(second, signal.SIGKILL)

        codes = {one.code for one in disturbed(server, bodies, kill)}
        assert codes <= {*ERROR_CODES, "shutting_down"}, codes
        assert server.end(15) == 1
        assert [line for line in server.errors if "every one used up its restarts" in line]
        assert not [line for line in server.errors if "Traceback" in line], server.errors


def test_an_engine_that_dies_again_and_again_ends_every_request_with_an_error() -> None:
    # SPEC A11
    with serve(*SLOW_STEPS, *QUICK_RESTART, "--set", "front.patience.replica_wait_s=1") as server:
        bodies = [body(number, 4000) | {"ignore_eos": True} for number in range(8)]

        async def kill() -> None:
            while True:
                for pid in children(server):
                    if any("kv_blocks" in name for name in server.held()):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.2)

        async def run() -> list[Outcome]:
            killer = asyncio.create_task(kill())
            outcomes = await ask_all(server.url, bodies)
            killer.cancel()
            return outcomes

        outcomes = asyncio.run(run())
        assert all(one.code in ERROR_CODES for one in outcomes), outcomes
        serves_again(server, 1)
