"""A streaming session whose client stops reading, over a real socket whose buffers are full (SPEC H5, B5)."""

import asyncio
import json

import uvicorn
from tests.integration.small_sockets import small_socket
from tests.unit.adapters.gateway.playback.fakes import SESSIONS, STREAMER, Cinema

from headway.adapters.gateway.protocol import BoundedHead, http_protocol
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.artifacts import Made

FILM = 300_000  # bytes of a chunk
HEAD = "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"


def asked(**fields: object) -> bytes:
    body = json.dumps({"model": STREAMER, "prompt": "a red circle", "seed": 7, **fields})
    return (HEAD.format(path=SESSIONS, length=len(body)) + body).encode()


def test_a_reader_that_stops_holds_a_chunk_and_is_dropped_while_others_are_served() -> None:
    async def run() -> None:
        cinema, settings = Cinema(), GatewaySettings()
        projector, lost, waiting = cinema.projector, asyncio.Event(), list[BoundedHead]()
        projector.takes_s, projector.film = 0.0, lambda words: Made("video", words.ljust(FILM))

        class Watched(http_protocol(settings)):  # type: ignore[misc]  # made at run time
            def pause_writing(self) -> None:
                super().pause_writing()
                waiting.append(self)

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                lost.set()

        config = uvicorn.Config(cinema.app, http=Watched, log_level="critical", lifespan="off")
        config.load()
        state, loop = uvicorn.server.ServerState(), asyncio.get_running_loop()
        listener, client = small_socket(), small_socket()
        listener.bind(("127.0.0.1", 0))
        made = lambda: Watched(config=config, server_state=state, app_state={})  # noqa: E731  # as uvicorn makes it
        server = await loop.create_server(made, sock=listener)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, asked(ahead=8))
        while not waiting:
            await asyncio.sleep(0)
        (view,) = (await cinema.ask("GET", SESSIONS))[1]["data"]  # type: ignore[misc]  # JSON
        other = cinema.watch(seconds=2)
        await other.done
        assert (other.is_done, len(other.chunks)) == (True, 1)
        assert not lost.is_set()  # nobody had to wait for who does not read
        (stuck,) = waiting
        assert stuck.transport.get_write_buffer_size() < 4 / 3 * FILM + 1000
        stuck._unread._look()  # `stall_timeout_s` is over
        await lost.wait()
        await asyncio.gather(*state.tasks)
        mine = [one.id for one in projector.painted if one.id.startswith(str(view["id"]))]
        assert len(mine) == 2  # the one that lies in the buffers, and the one that waits behind it
        assert [one.frames for one in cinema.metered] == [4, 4, 4]  # those two, and the other's
        await cinema.left_nothing()
        client.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
