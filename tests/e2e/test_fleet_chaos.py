"""Real processes fail under load: nothing is lost, nothing is wrong, and the fleet serves again (SPEC A11)."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.e2e.chaos import CHAT, RELAYED, Fleet, Tally, bodies, engine_pids, fleet, kill
from tests.e2e.serving import serve, until
from tests.e2e.wire import Connection, request_bytes

BODIES = bodies()
RELAYED_ONLY = [body for body in BODIES if body["model"] == RELAYED]
OWN_ONLY = [body for body in BODIES if body["model"] != RELAYED]
WHOLE = [body for body in RELAYED_ONLY if not body["stream"]]
STREAMS = [body for body in RELAYED_ONLY if body["stream"]]


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    with fleet() as made:
        made.learn(BODIES)
        yield made


@pytest.fixture
def world(running: Fleet) -> Iterator[Fleet]:
    yield running
    running.settle()


def during(world: Fleet, disturb: Callable[[], Awaitable[None]], of: list[dict[str, object]] | None = None) -> Tally:
    tally = world.under_load(of or BODIES, disturb)
    tally.check()
    return tally


def test_a_killed_engine_costs_no_request_and_no_token(world: Fleet) -> None:
    # kill -9 of an engine of ours: its streams go on elsewhere with the same text, greedy and sampled by seed
    before = world.recoveries()

    async def disturb() -> None:
        for _ in range(2):
            await asyncio.sleep(0.3)
            kill(engine_pids(world.server)[0])

    assert during(world, disturb, OWN_ONLY).failed == {}
    assert world.recoveries()["resumed"] > before["resumed"]


def test_a_stopped_engine_goes_on_where_it_was(world: Fleet) -> None:  # SIGSTOP for a second
    async def disturb() -> None:
        pid = engine_pids(world.server)[0]
        await asyncio.sleep(0.2)
        kill(pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)
        kill(pid, signal.SIGCONT)

    assert during(world, disturb, OWN_ONLY).failed == {}


def test_a_killed_upstream_fails_only_what_it_had_begun_and_comes_back_on_its_port(world: Fleet) -> None:
    # smg#2468: a restarted worker is probed again
    up = world.upstreams[0]

    async def disturb() -> None:
        await asyncio.sleep(0.3)
        up.kill()
        await asyncio.sleep(0.5)
        up.start()

    assert set(during(world, disturb).failed) <= {"engine_lost"}


def test_a_stopped_upstream_holds_no_request_beyond_its_timeout(world: Fleet) -> None:
    # SIGSTOP for longer than the timeouts: dynamo#13088, requests hang for minutes after their selection
    up = world.upstreams[1]

    async def disturb() -> None:
        await asyncio.sleep(0.2)
        up.signal(signal.SIGSTOP)
        await asyncio.sleep(2.0)
        up.signal(signal.SIGCONT)

    assert set(during(world, disturb, RELAYED_ONLY).failed) <= {"engine_lost"}  # streams that had begun


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "slow_first_byte", "times": 12, "seconds": 1.5},
        {"kind": "half_open", "times": 8},
        {"kind": "reset", "times": 20},
        {"kind": "truncate", "times": 20},
        {"kind": "garbage", "times": 20},
        {"kind": "status", "times": 40, "status": 500},
        {"kind": "status", "times": 40, "status": 503},
        {"kind": "status", "times": 40, "status": 429, "retry_after": "1"},
    ],
    ids=lambda fault: f"{fault['kind']}{fault.get('status', '')}",
)
def test_what_fails_before_its_first_byte_runs_on_the_other_upstream(world: Fleet, fault: dict[str, object]) -> None:
    # sglang#25811, vllm-router#60, sglang#39464: storms of errors and of backpressure
    async def disturb() -> None:
        await world.upstreams[0].order(faults=[fault | {"path": "/v1/chat"}])
        await asyncio.sleep(1.2)

    assert during(world, disturb, WHOLE).failed == {}


@pytest.mark.parametrize("kind", ["reset", "truncate", "garbage", "error_event", "no_done"])
def test_a_stream_that_breaks_ends_with_an_error_that_says_so(world: Fleet, kind: str) -> None:
    # semantic-router#3063: never silence, never [DONE]; litellm#29808: no retry once it has begun
    async def disturb() -> None:
        await world.upstreams[0].order(faults=[{"kind": kind, "times": 6, "after": 3, "path": "/v1/chat"}])
        async with asyncio.timeout(20.0):
            while (await world.upstreams[0].order())["faults_left"] == 6:  # until a stream has come there
                await asyncio.sleep(0.1)

    tally = during(world, disturb, STREAMS)
    assert 1 <= tally.failures <= 6
    assert tally.answered >= tally.failures  # the rest of the first twelve at least


def test_backpressure_from_everybody_is_waited_out(world: Fleet) -> None:
    # sglang#39464: 429 everywhere for a moment costs nobody anything but time
    async def disturb() -> None:
        for up in world.upstreams:
            await up.order(faults=[{"kind": "status", "times": 12, "status": 429, "path": "/v1/chat"}])
        await asyncio.sleep(0.5)

    assert during(world, disturb, RELAYED_ONLY).failed == {}


def test_flapping_health_and_restarts_lose_nothing(world: Fleet) -> None:
    up = world.upstreams[0]

    async def disturb() -> None:
        for _ in range(2):
            await up.order(faults=[{"kind": "status", "times": 3, "status": 500, "path": "/health"}])
            await asyncio.sleep(0.3)
            up.kill()
            up.start()
            await asyncio.sleep(0.2)

    assert set(during(world, disturb).failed) <= {"engine_lost"}


def test_metrics_that_freeze_or_lie_starve_nobody(world: Fleet) -> None:
    # dynamo#10564, aibrix#547
    async def disturb() -> None:
        await world.upstreams[0].order(metrics={"waiting": 5000, "running": 5000, "kv_usage": 1.0})
        await world.upstreams[1].order(metrics={"frozen": True})
        await asyncio.sleep(0.8)
        await world.upstreams[0].order(metrics={"garbage": True})
        await asyncio.sleep(0.3)

    assert during(world, disturb, RELAYED_ONLY).failed == {}


def test_a_drain_loses_no_request_and_holds_until_it_is_taken_back(world: Fleet) -> None:
    # GAIE#548, aibrix#2413: what runs there ends as it would; an engine that restarts stays drained
    async def disturb() -> None:
        await asyncio.sleep(0.2)
        for replica in ("rep-0", "up-a"):
            status, answer = await asyncio.to_thread(world.server.call, f"/v1/replicas/{replica}/drain", {})
            assert status == 200, answer
        kill(engine_pids(world.server)[0])
        await asyncio.sleep(0.8)

    assert during(world, disturb).failed == {}
    until(lambda: world.replicas()["rep-0"]["state"] == "draining", "the restarted engine is drained")
    before = asyncio.run(world.upstreams[0].order())["requests"]
    during(world, lambda: asyncio.sleep(0.3))
    assert asyncio.run(world.upstreams[0].order())["requests"] == before
    assert [name for name, shown in world.replicas().items() if shown["drained"]] == ["rep-0", "up-a"]
    for replica in ("rep-0", "up-a"):
        assert world.server.call(f"/v1/replicas/{replica}/undrain", {})[0] == 200


def test_clients_that_leave_free_their_upstream_at_once(world: Fleet) -> None:
    # smg PR#2136: noticed only at the next chunk, the engine keeps working
    async def leave() -> None:
        for up in world.upstreams:
            await up.order(faults=[{"kind": "half_open", "times": 2, "path": "/v1/chat"}])
        asking = [asyncio.create_task(_ask_and_leave(world, body)) for body in RELAYED_ONLY[:8]]
        await asyncio.gather(*asking)

    asyncio.run(leave())
    until(lambda: not world.server.held(), lambda: f"nothing is held: {world.server.held()}", 5.0)


async def _ask_and_leave(world: Fleet, body: dict[str, object]) -> None:
    connection = await Connection.open(world.server.url)
    await connection.send(request_bytes(CHAT, body))
    await asyncio.sleep(0.15)
    connection.drop()


def test_hedged_requests_are_answered_once_by_whoever_is_first() -> None:
    with fleet("front.hedge={after_ms=80, share_max=1.0}") as world:
        world.learn(BODIES)

        async def disturb() -> None:
            await world.upstreams[0].order(faults=[{"kind": "slow_first_byte", "times": 40, "seconds": 0.6}])
            await asyncio.sleep(0.2)
            kill(engine_pids(world.server)[0], signal.SIGSTOP)
            await asyncio.sleep(1.0)
            kill(engine_pids(world.server)[0], signal.SIGCONT)

        assert during(world, disturb).failed == {}
        assert world.recoveries()["hedge_won"] > 0
        world.settle()


def test_a_restarted_gateway_routes_everything_again() -> None:
    # dynamo#4904: a frontend that restarts does not recover; here it asks upstreams and engines again
    with fleet(engines=1, upstreams=1) as first:
        first.learn(BODIES)
        port = first.server.url.rpartition(":")[2]
        asked = [*first.arguments, "--port", port]
        first.server.process.kill()
        first.server.end()
        with serve(*asked) as server:
            second = Fleet(server, first.upstreams)
            second.expected = first.expected
            until(lambda: len(second.replicas()) == 2, "everybody is there again")
            assert during(second, lambda: asyncio.sleep(0.5)).failed == {}
            second.settle()
