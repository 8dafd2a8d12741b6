"""The ordinary routes: models, tokenize, health, ledger, estimates, metrics. One JSON object each."""

from importlib.metadata import PackageNotFoundError, version

from headway.adapters.gateway.caller import Caller, RequestIndex
from headway.adapters.gateway.estimates import text_estimate
from headway.adapters.gateway.evidence import ledger_object
from headway.adapters.gateway.playback.predicted import Estimates
from headway.adapters.gateway.ports import ModelCard, NamedModel, PictureCard, Serving
from headway.adapters.gateway.prepare import Models, Preparer, text_route
from headway.adapters.gateway.prompts import INLINE_CHARS_MAX, Encoder, chat_text, check_length
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.schema import DetokenizeBody, EstimateBody, TokenizeBody
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import CapacityError

JsonObject = dict[str, object]


class PlainRoutes:
    """Answers by route. Each raises HeadwayError for what it refuses."""

    def __init__(
        self,
        serving: Serving,
        models: Models,
        preparer: Preparer,
        encoder: Encoder,
        pictures: Estimates,
        settings: GatewaySettings,
    ) -> None:
        self._serving, self._models, self._preparer, self._encoder = serving, models, preparer, encoder
        self._pictures, self._settings, self._sheet = pictures, settings, settings.sheet
        self.index = RequestIndex(settings.limits.remembered_requests)

    def models(self) -> JsonObject:
        """`GET /v1/models`."""
        own = [_model_object(card) for card in self._serving.models()]
        return {"object": "list", "data": [*own, *(_named_object(named) for named in self._serving.directory.named())]}

    def model(self, name: str) -> JsonObject:
        """`GET /v1/models/{id}`."""
        named = self._models.named(name)
        return _model_object(self._models.card(name)) if named is None else _named_object(named)

    async def tokenize(self, raw: bytes) -> JsonObject:
        """`POST /tokenize`, in vLLM's shape."""
        body = await self._encoder.parse(raw, TokenizeBody)
        card, tokenizer = self._models.text_or_only(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt", "Send either `prompt` or `messages`.")
        chat = body.prompt is None
        text = chat_text(body, tokenizer, self._settings.limits) if body.prompt is None else body.prompt
        check_length(text, "messages" if chat else "prompt", self._settings.limits)
        special = not chat if body.add_special_tokens is None else body.add_special_tokens
        tokens = await self._encoder.run(
            lambda: tokenizer.encode(text, add_special_tokens=special), long=len(text) > INLINE_CHARS_MAX
        )
        names = [tokenizer.name(token) for token in tokens] if body.return_token_strs else None
        return {"count": len(tokens), "max_model_len": card.max_model_len, "tokens": tokens, "token_strs": names}

    async def detokenize(self, raw: bytes) -> JsonObject:
        """`POST /detokenize`, in vLLM's shape; special tokens are spelled out."""
        body = await self._encoder.parse(raw, DetokenizeBody)
        card, tokenizer = self._models.text_or_only(body.model)
        over = next((token for token in body.tokens if token >= card.vocab_size), None)
        if over is not None:
            raise invalid("tokens", f"`tokens` has {over}; model `{card.id}` has {card.vocab_size} tokens.")
        text = await self._encoder.run(
            lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), long=len(body.tokens) > INLINE_CHARS_MAX
        )
        return {"prompt": text}

    def ready(self) -> JsonObject:
        """`GET /ready`. Raises CapacityError 503 while requests cannot be served. A job table that is away is told and
        no reason to be out: every gateway that shares it would be out at once, and text needs none."""
        ready, why = self._serving.ready()
        if not ready:
            raise CapacityError(f"Not ready: {why}.", status=503, code="not_ready")
        degraded = list(self._serving.stats().degraded)
        return {"status": "ready", "degraded": degraded} if degraded else {"status": "ready"}

    def version(self) -> JsonObject:
        """`GET /version`."""
        try:
            return {"version": version("headway")}
        except PackageNotFoundError:  # run from a source tree
            return {"version": "unknown"}

    def load(self) -> JsonObject:
        """`GET /load`, in vLLM's shape."""
        return {"server_load": self._serving.stats().in_flight}

    def ledger(self, tenant: Tenant) -> JsonObject:
        """`GET /v1/ledger`."""
        return ledger_object(self._serving.accounts(), tenant)

    async def reset_prefix_cache(self) -> JsonObject:
        """`POST /reset_prefix_cache`. Raises CapacityError 503 when a replica did not answer."""
        if not await self._serving.reset_prefix_cache():
            raise CapacityError("A replica did not reset its prefix cache.", status=503, code="no_replica")
        return {"reset": True}

    async def estimate(self, raw: bytes, caller: Caller) -> JsonObject:
        """`POST /v1/estimates`: all choices of the request together; the price is device time by the price sheet."""
        body = await self._encoder.parse(raw, EstimateBody)
        route = text_route(body.endpoint)
        if route is None:
            return self._pictures.answer(body.endpoint, bytes(body.body), caller)
        prepared = await self._preparer.prepare(route, bytes(body.body), caller)
        parts = [self._serving.estimate(request) for request in prepared.requests]
        return text_estimate(prepared, parts, self._sheet)


def _named_object(named: NamedModel) -> JsonObject:
    """What is known of a model of an upstream. Its limits are not."""
    return {
        "id": named.id,
        "object": "model",
        "created": named.created,
        "owned_by": "headway",
        "root": named.root,
        "parent": named.parent,
        "max_model_len": None,
        "modalities": ["text"],
    }


def _model_object(card: ModelCard) -> JsonObject:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "headway",
        "root": card.root or card.id,
        "parent": card.parent,
        "max_model_len": None if card.pictures is not None else card.max_model_len,
        "modalities": list(card.modalities),
        **({} if card.pictures is None else {"pictures": _picture_object(card.pictures)}),
    }


def _picture_object(looks: PictureCard) -> JsonObject:
    """What a client may ask of a diffusion model."""
    shown: JsonObject = {
        "size": looks.size,
        "sizes": list(looks.sizes) or None,
        "multiple": looks.multiple,
        "pixels_max": looks.pixels_max,
        "num_inference_steps": looks.steps,
        "num_inference_steps_max": looks.steps_max,
        "guidance_scale": looks.guidance_scale,
        "edits": looks.edits,
        "image_prompt_scale": looks.image_prompt_scale,
    }
    if looks.fps:
        shown |= {"fps": looks.fps, "seconds": list(looks.seconds)}
    if looks.chunk_frames:  # of a streaming session (SPEC H5)
        shown |= {"context_frames": looks.context_frames, "chunk_frames": looks.chunk_frames}
    return shown
