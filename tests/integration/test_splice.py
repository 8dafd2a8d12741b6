"""A connection that one gateway process passes to another, over real sockets."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.small_sockets import small_socket
from uvicorn.server import ServerState

from headway.adapters.gateway.relay.splice import Splice

ANSWER = b"x" * 500_000


@pytest.mark.parametrize("reads", [False, True])
def test_who_takes_nothing_is_dropped_once_the_other_process_has_answered(tmp_path: Path, reads: bool) -> None:
    # SPEC B5, M5
    async def run() -> None:
        loop, state, lost = asyncio.get_running_loop(), ServerState(), asyncio.Event()
        door = str(tmp_path / "door")

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await reader.readexactly(3) == b"ask"
            writer.write(ANSWER)
            writer.close()

        class Watched(Splice):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                lost.set()

        far = await asyncio.start_unix_server(answer, door)
        listener, client = small_socket(), small_socket()
        listener.bind(("127.0.0.1", 0))
        near = await loop.create_server(lambda: Watched(door, state, loop, 0.05), sock=listener)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, b"ask")
        taken = 0
        while reads and (part := await loop.sock_recv(client, 4096)):
            taken += len(part)
        await asyncio.wait_for(lost.wait(), 20)
        assert taken == (len(ANSWER) if reads else 0)
        assert not state.connections
        client.close()
        for server in (near, far):
            server.close()
            await server.wait_closed()

    asyncio.run(run())


def test_a_main_process_that_is_gone_is_a_passing_outage_to_clients(tmp_path: Path) -> None:
    # openai's client asks again only where the answer says so
    async def run() -> bytes:
        loop, state = asyncio.get_running_loop(), ServerState()
        near = await loop.create_server(lambda: Splice(str(tmp_path / "none"), state, loop, 1.0), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*near.sockets[0].getsockname())
        answer = await reader.read()
        writer.close()
        near.close()
        await near.wait_closed()
        return answer

    head, _, body = asyncio.run(run()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in head
    assert b"x-should-retry: true" in head
    assert b"shutting_down" in body
