"""Listening sockets and the HTTP servers behind them."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
import uvicorn

from headway.core.errors import EngineError

BACKLOG: Final = 2048


def bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Take the address before anything is loaded, so that one in use is told at once. Raises EngineError.

    `is_shared`: further processes of this gateway will take it too.
    """
    listener = _bound(host, port, is_shared=False)
    if not is_shared:
        return listener
    # The address was free of everybody, other gateways that share theirs included.
    taken = listener.getsockname()[1]
    listener.close()
    return join(host, taken)


def join(host: str, port: int) -> socket.socket:
    """Take an address together with the other processes of this gateway. Raises EngineError."""
    return _bound(host, port, is_shared=True)


def _bound(host: str, port: int, *, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Two servers that start at the same time can both bind, and only one can listen. Raises EngineError."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> EngineError:
    reason = error.strerror or error
    return EngineError(f"server.host, server.port: cannot listen on {host} port {port}: {reason}", status=503)


class HttpTimes(msgspec.Struct, frozen=True):
    """How long connections may be idle, and answers may go on when the server stops."""

    keep_alive_s: float
    shutdown_s: float


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one place that decides how it ends."""

    cut = 0  # answers that were cut off because they did not end in the time

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it; what it logs of answers that are cut off is kept in `cut`."""
        logger = logging.getLogger("uvicorn.error")

        def is_ours(record: logging.LogRecord) -> bool:
            if not record.msg.startswith("Cancel %s running task") or not self.server_state.tasks:
                return True
            self.cut = len(self.server_state.tasks)
            return False

        logger.addFilter(is_ours)
        try:
            await super().shutdown(sockets)
        finally:
            logger.removeFilter(is_ours)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def until_started(self) -> None:
        """Wait until it accepts connections."""
        while not self.started:
            await asyncio.sleep(0.005)  # uvicorn has no event for it

    async def open_door(self, path: Path) -> None:
        """Answer on a Unix socket too, until it stops. Called once it has started."""
        loop = asyncio.get_running_loop()

        def made() -> asyncio.Protocol:
            found: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn makes it
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            return found

        self.servers.append(await loop.create_unix_server(made, path, backlog=BACKLOG))


def http_server(
    app: object, protocol: type[asyncio.Protocol], times: HttpTimes, lifespan: Literal["on", "off"]
) -> HttpServer:
    """Return a server that logs where the rest of the process does."""
    return HttpServer(
        uvicorn.Config(
            app,  # type: ignore[arg-type]  # uvicorn's own type names what it never asks of it
            http=protocol,
            ws="none",
            lifespan=lifespan,
            log_config=None,  # its lines go where ours go
            log_level="warning",
            access_log=False,
            timeout_keep_alive=times.keep_alive_s,  # type: ignore[arg-type]  # any number works
            timeout_graceful_shutdown=times.shutdown_s,  # type: ignore[arg-type]  # any number works
        )
    )
