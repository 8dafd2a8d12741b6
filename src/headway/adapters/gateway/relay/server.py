"""What all client connections of a relaying server share."""

import asyncio
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


class RelayServer:
    """One per gateway process."""

    def __init__(
        self, serving: RelayServing, settings: GatewaySettings, witness: Witness, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.serving, self.limits = serving, settings.limits
        self.stall_timeout_s = settings.stream.stall_timeout_s
        limits = settings.limits
        timeouts = (limits.header_timeout_s, limits.keep_alive_s, limits.body_timeout_s, limits.request_timeout_s)
        self.sweep = Sweep(loop, min(*timeouts, self.stall_timeout_s))
        self._witness = witness
        self._preparer = RelayPreparer(settings)
        self._foreign = http_protocol(limits)

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
    ) -> BoundedHead:
        """Make the protocol of everything that is not relayed."""
        made = self._foreign(config=config, server_state=state, app_state=app_state, _loop=loop)
        assert isinstance(made, BoundedHead)
        return made
