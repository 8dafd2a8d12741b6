"""`POST /v1/route/explain`: where a request would go now, with the parts of every replica's score. It runs nothing."""

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.playback.predicted import Estimates
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prepare import Preparer, text_route
from headway.adapters.gateway.prompts import Encoder
from headway.adapters.gateway.relay.body import model_named, read_body, wrong_shape
from headway.adapters.gateway.relay.prepare import OPERATIONS, text_request
from headway.adapters.gateway.schema import EstimateBody
from headway.adapters.gateway.tenants import KeyTable
from headway.core.errors import RequestError
from headway.core.request import Request


class ExplainRoute:
    """With an admin key configured, only for it: the answer shows every replica and everybody's load."""

    def __init__(
        self, serving: Serving, keys: KeyTable, preparer: Preparer, encoder: Encoder, pictures: Estimates
    ) -> None:
        self._serving, self._keys, self._preparer, self._encoder = serving, keys, preparer, encoder
        self._pictures = pictures

    async def answer(self, raw: bytes, caller: Caller) -> JsonObject:
        """Explain the first choice of the first prompt. Raises RequestError."""
        if self._keys.has_admin and not caller.tenant.admin:
            raise RequestError("Only an admin key may look at routes.", status=403, code="admin_only")
        body = await self._encoder.parse(raw, EstimateBody)
        found = self._serving.explain(await self._request(body.endpoint, bytes(body.body), caller))
        return {
            "model": found.model,
            "policy": found.policy,
            "prompt_tokens": found.prompt_tokens,
            "output_tokens": found.output_tokens,
            "output_tokens_likely": found.output_tokens_likely,
            "verdict": found.verdict,
            "verdict_reason": found.verdict_reason,
            "replicas": list(found.replicas),
        }

    async def _request(self, endpoint: str, raw: bytes, caller: Caller) -> Request:
        route = text_route(endpoint)
        if route is None:
            return self._pictures.prepare(endpoint, raw, caller).request
        relayed = self._relayed(raw, OPERATIONS[route], caller)
        return relayed if relayed is not None else (await self._preparer.prepare(route, raw, caller)).requests[0]

    def _relayed(self, raw: bytes, operation: str, caller: Caller) -> Request | None:
        """Return the request that the relay would make of a body; None when its model is our own or unknown."""
        name = model_named(raw)
        model = None if name is None else self._serving.directory.model(name)
        if model is None:
            return None
        body = read_body(raw)
        if body is None:
            raise wrong_shape(raw)
        return text_request(body, model, caller, operation)
