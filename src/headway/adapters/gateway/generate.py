"""Answers a generation request: at the model it names, or once more at another one where admission sends it."""

from urllib.parse import quote

from headway.adapters.gateway.caller import Caller, Remembered, RequestIndex, again
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.outputs import StreamOutput, WholeOutput
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prepare import Prepared, Preparer, Route
from headway.adapters.gateway.rate_headers import rate_headers
from headway.adapters.gateway.session import Session, TokenCounts
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.errors import RequestError


class Generator:
    """From a body to the last byte of its answer."""

    def __init__(
        self,
        serving: Serving,
        preparer: Preparer,
        index: RequestIndex,
        counts: TokenCounts,
        settings: GatewaySettings,
    ) -> None:
        self._serving, self._preparer, self._index = serving, preparer, index
        self._counts, self._settings = counts, settings

    async def answer(self, route: Route, raw: bytes, caller: Caller, exchange: Exchange) -> None:
        """Answer. Raises RequestError for what is refused before it is submitted."""
        session = await self._run(await self._preparer.prepare(route, raw, caller), caller, exchange)
        if session.moves_to is None:
            return
        caller = again(caller)
        try:
            prepared = await self._preparer.prepare(route, raw, caller, session.moves_to)
        except RequestError:  # it cannot be had there: the refusal stands
            await exchange.fail(session.refusal())
            return
        moved = await self._run(prepared, caller, exchange)
        if moved.moves_to is not None:  # once is enough
            await exchange.fail(moved.refusal())

    async def _run(self, prepared: Prepared, caller: Caller, exchange: Exchange) -> Session:
        tenant, answer = caller.tenant, prepared.answer
        exchange.own_headers = [
            (b"x-request-id", answer.public_id.encode()),
            (b"traceparent", caller.trace.parent.encode()),
            *([(b"x-headway-model", quote(answer.model).encode())] if answer.asked is not None else []),
        ]
        session = Session(self._serving, exchange, self._counts, self._settings)
        runs = session.submit(prepared, caller.body_ns)
        exchange.own_headers += rate_headers(self._serving.rate_limits(tenant.id))
        requests = tuple(run.request.id for run in runs)
        self._index.remember(answer.public_id, Remembered(tenant.id, requests, caller.trace.trace_id))
        output = StreamOutput if answer.stream else WholeOutput
        await session.run(output(exchange, prepared, runs))
        return session
