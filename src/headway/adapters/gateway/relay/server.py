"""What all client connections of a relaying server share."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.server import ServerState

from headway.adapters.gateway.caller import minted_id, request_id
from headway.adapters.gateway.protocol import BoundedHead, http_protocol
from headway.adapters.gateway.relay.body import model_named, read_body, wrong_shape
from headway.adapters.gateway.relay.ports import RelayServing
from headway.adapters.gateway.relay.prepare import Arrival, Prepared, RelayPreparer
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.http1.sweep import Sweep
from headway.core.errors import RequestError


class Witness(Protocol):
    """Who keeps count of what passes by the application."""

    def submitted(self, prepared: Prepared) -> None:
        """A request is about to be submitted: its public id names it from now on."""
        ...

    def refused(self) -> None:
        """A request was refused for what it asks."""
        ...


class Foreign(Protocol):
    """The protocol of what is not relayed, on the same connection: uvicorn's, or a splice to another process."""

    @property
    def is_idle(self) -> bool:
        """Its last answer is complete: the connection can be taken back."""
        ...

    def connection_made(self, transport: asyncio.Transport) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def leave(self) -> None:
        """Another protocol goes on with the connection."""
        ...


class RelayServer:
    """One per gateway process."""

    def __init__(
        self,
        serving: RelayServing,
        settings: GatewaySettings,
        witness: Witness,
        loop: asyncio.AbstractEventLoop,
        splice: Callable[[ServerState], Foreign] | None = None,
    ) -> None:
        """`splice` makes what speaks for all that is not relayed; None: this process answers it itself."""
        self.serving, self.limits = serving, settings.limits
        self.stall_timeout_s = settings.stream.stall_timeout_s
        limits = settings.limits
        timeouts = (limits.header_timeout_s, limits.keep_alive_s, limits.body_timeout_s, limits.request_timeout_s)
        self.sweep = Sweep(loop, min(*timeouts, self.stall_timeout_s))
        self._witness, self._splice = witness, splice
        self._preparer = RelayPreparer(settings)
        self._foreign = http_protocol(settings)

    def prepare(self, arrival: Arrival) -> Prepared | None:
        """Return the request; None when its model is not relayed. Raises RequestError."""
        body = read_body(arrival.body)
        name = model_named(arrival.body) if body is None else body.model
        model = None if name is None else self.serving.model(name)
        if model is None:
            return None
        tenant = self._preparer.tenant(arrival.head)
        if body is None:
            raise wrong_shape(arrival.body)
        return self._preparer.prepare(arrival, body, model, tenant)

    def remember(self, prepared: Prepared) -> None:
        """A request is about to be submitted."""
        self._witness.submitted(prepared)

    def refused(self) -> None:
        """A request was refused for what it asks."""
        self._witness.refused()

    def id_lines(self, arrival: Arrival) -> bytes:
        """The header line that names a request which is refused: by its own id, where that can be echoed."""
        try:
            public_id, _ = request_id(arrival.head.headers)
        except RequestError:
            return self.minted_lines()
        return f"x-request-id: {public_id}\r\n".encode()

    def minted_lines(self) -> bytes:
        """The header line that names a request without an id."""
        return f"x-request-id: {minted_id()}\r\n".encode()

    def foreign(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],  # uvicorn's own type
        loop: asyncio.AbstractEventLoop,
    ) -> Foreign:
        """Make the protocol of everything that is not relayed."""
        if self._splice is not None:
            return self._splice(state)
        made = self._foreign(config=config, server_state=state, app_state=app_state, _loop=loop)
        assert isinstance(made, BoundedHead)
        return made
