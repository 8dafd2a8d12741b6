"""From a parsed body to requests of the ring, and to how their answer is rendered."""

import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from headway.adapters.gateway.caller import Caller, checked_id
from headway.adapters.gateway.ports import ModelCard, NamedModel, Serving, Starting
from headway.adapters.gateway.prompts import (
    Encoder,
    Prompt,
    chat_text,
    check_length,
    encode_prompt,
    hashed,
    is_long,
    raw_prompts,
    salted_root,
)
from headway.adapters.gateway.refusals import listed, nearest
from headway.adapters.gateway.sampling import (
    Generation,
    base_seed,
    check_vocabulary,
    choice_seed,
    invalid,
    logprobs_asked,
    output_tokens,
    sampling_params,
    stop_strings,
)
from headway.adapters.gateway.schema import ChatBody, CompletionBody
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.tokenizer import Tokenizer
from headway.core.errors import CapacityError, RequestError
from headway.core.ids import ModelId, RequestId
from headway.core.request import LlmRequest

Route = Literal["/v1/chat/completions", "/v1/completions"]
LOADING_RETRY_MS: Final = 2000
MODELS_LISTED: Final = 20  # in the answer to an unknown name
GENERATION_ROUTES: Final[tuple[Route, ...]] = ("/v1/chat/completions", "/v1/completions")


def text_route(endpoint: str) -> Route | None:
    """Return the route of that path where it generates text."""
    return next((route for route in GENERATION_ROUTES if route == endpoint), None)


class Answer(msgspec.Struct, frozen=True):
    """How the answer to one HTTP request is rendered; the same for all of its choices."""

    id: str
    public_id: str
    model: str
    created: int
    chat: bool
    stream: bool
    n: int
    include_usage: bool
    continuous_usage: bool
    stream_interval: int
    stops: tuple[str, ...]
    include_stop: bool
    stop_tokens: frozenset[int]  # tokens that may end the text without being part of it
    min_tokens: int
    skip_special: bool
    logprobs: int | None
    return_token_ids: bool
    echo: bool
    asked: str | None = None  # another name that the client gave it


class Prepared(msgspec.Struct, frozen=True):
    """Everything that one HTTP request asks for. Choice i belongs to prompt i // n."""

    answer: Answer
    prompts: tuple[Prompt, ...]
    requests: tuple[LlmRequest, ...]
    tokenizer: Tokenizer
    degraded: dict[str, int | str] = {}  # what was taken away already; msgspec copies the default


class Models:
    """The served models and their tokenizers, by name."""

    def __init__(self, serving: Serving, tokenizers: Mapping[str, Tokenizer]) -> None:
        self._serving, self._tokenizers = serving, tokenizers

    def card(self, name: str) -> ModelCard:
        """Return a model's card. Raises RequestError 404; CapacityError 503 while it starts."""
        answering = self._serving.directory.answering(name)
        for card in self._serving.models():
            if card.id == answering:
                return card
        for model in self._serving.starting():
            if model.id == answering:
                raise _still_starting(model)
        self.require_loaded()
        raise unknown_model(name, self._names())

    def _names(self) -> list[str]:
        named = (model.id for model in self._serving.directory.named())
        coming = (model.id for model in self._serving.starting())
        return list(dict.fromkeys((*(card.id for card in self._serving.models()), *named, *coming)))

    def only(self, kind: str) -> ModelCard | list[str]:
        """Return the one model that generates `kind`, or the names of all that do when that is not one. Raises
        CapacityError while it starts."""
        self.require_loaded()
        there = [card for card in self._serving.models() if kind in card.modalities]
        coming = [model for model in self._serving.starting() if kind in model.modalities]
        if len(there) + len(coming) != 1:
            return [*(card.id for card in there), *(model.id for model in coming)]
        if coming:
            raise _still_starting(coming[0])
        return there[0]

    def named(self, name: str) -> NamedModel | None:
        """Return what the name stands for beside the models of our own engines."""
        return next((named for named in self._serving.directory.named() if named.id == name), None)

    def require_loaded(self) -> None:
        """Nobody can say that a model does not exist while all of them load. Raises CapacityError."""
        if not self._serving.models() and not self._serving.directory.named():
            _, why = self._serving.ready()
            raise CapacityError(why, status=503, code="no_replica", retry_after_ms=LOADING_RETRY_MS)

    def text(self, name: str) -> tuple[ModelCard, Tokenizer]:
        """Return a text model. Raises RequestError when it is none."""
        if self._serving.directory.answering(name) not in self._tokenizers and self.named(name) is not None:
            raise invalid("model", f"The model `{name}` runs at an upstream: only generation requests are relayed.")
        card = self.card(name)
        if "text" not in card.modalities or card.id not in self._tokenizers:
            raise invalid("model", f"The model `{name}` generates {', '.join(card.modalities)}, not text.")
        return card, self._tokenizers[card.id]

    def text_or_only(self, name: str | None) -> tuple[ModelCard, Tokenizer]:
        """Return the named model; without a name the only text model there is."""
        if name is not None:
            return self.text(name)
        found = self.only("text")
        if isinstance(found, list):
            raise RequestError(
                f"Missing required parameter: `model`; one of {listed(found)}.",
                code="missing_required_parameter",
                param="model",
            )
        return self.text(found.id)


def _still_starting(model: Starting) -> CapacityError:
    why = f"The model `{model.id}` is starting: {model.doing}. Others may answer already: GET /v1/models."
    return CapacityError(why, status=503, code="no_replica", retry_after_ms=LOADING_RETRY_MS)


def unknown_model(name: str, known: Sequence[str]) -> RequestError:
    """What is answered for a name that nobody has: the nearest of those that are `known`, and all of them."""
    return RequestError(
        f"The model `{name[:256]}` does not exist or you do not have access to it.{nearest(name, known)} "
        f"There are: {listed(known[:MODELS_LISTED])}{', ...' if len(known) > MODELS_LISTED else ''}.",
        status=404,
        code="model_not_found",
        param="model",
    )


class Preparer:
    """Validates and tokenizes."""

    def __init__(self, serving: Serving, models: Models, encoder: Encoder, settings: GatewaySettings) -> None:
        self._serving, self._models, self._encoder, self._limits = serving, models, encoder, settings.limits

    async def prepare(self, route: Route, raw: bytes, caller: Caller, moved_to: str | None = None) -> Prepared:
        """Return the requests for `raw`, at the model it names or at `moved_to`. Raises RequestError."""
        chat = route == "/v1/chat/completions"
        parse = self._encoder.parse
        body: Generation = await parse(raw, ChatBody) if chat else await parse(raw, CompletionBody)
        card, tokenizer = self._models.text(moved_to or body.model)
        self._check(body, card, caller)
        stops = stop_strings(body, self._limits)
        prompts = await self._prompts(body, card, tokenizer, caller)
        answer = _answer(body, card, caller, stops)
        requests = self._requests(body, card, caller, prompts)
        is_degraded = moved_to is not None and "model" in requests[0].allow_degrade
        return Prepared(answer, prompts, requests, tokenizer, {"model": card.id} if is_degraded else {})

    def _check(self, body: Generation, card: ModelCard, caller: Caller) -> None:
        n = body.n or 1
        if n > self._limits.n:
            raise invalid("n", f"`n` is {n}; the limit is {self._limits.n}.")
        if body.stream_options is not None and not body.stream:
            raise invalid("stream_options", "`stream_options` needs `stream: true`.")
        if body.stream_interval is not None and not body.stream:
            raise invalid("stream_interval", "`stream_interval` needs `stream: true`.")
        if isinstance(body, CompletionBody) and body.echo and body.logprobs is not None:
            raise invalid("echo", "`echo` with `logprobs` needs log-probabilities of the prompt, which are not served.")
        floor, priority = caller.tenant.priority_floor, body.priority or 0
        if floor is not None and priority < floor:
            raise invalid("priority", f"`priority` is {priority}; the floor of this tenant is {floor}.")
        check_vocabulary(body, card)

    async def _prompts(
        self, body: Generation, card: ModelCard, tokenizer: Tokenizer, caller: Caller
    ) -> tuple[Prompt, ...]:
        sources: list[str | list[int]]
        if isinstance(body, ChatBody):
            sources = [chat_text(body, tokenizer, self._limits)]
        else:
            sources = raw_prompts(body, self._limits)
        for source in sources:
            if isinstance(source, str):
                check_length(source, "messages" if isinstance(body, ChatBody) else "prompt", self._limits)
        root = salted_root(card, caller.tenant.id, body.cache_salt)

        def encode() -> tuple[Prompt, ...]:
            out: list[Prompt] = []
            for source in sources:
                tokens = encode_prompt(source, body, tokenizer, card)
                output_tokens(body, len(tokens), card)
                out.append(hashed(tokens, root, card, source if isinstance(source, str) else None))
            return tuple(out)

        return await self._encoder.run(encode, long=is_long(sources))

    def _requests(
        self, body: Generation, card: ModelCard, caller: Caller, prompts: tuple[Prompt, ...]
    ) -> tuple[LlmRequest, ...]:
        n = body.n or 1
        public_id = _public_id(body, caller)
        root = salted_root(card, caller.tenant.id, body.cache_salt)
        allowed = tuple(dict.fromkeys((*(body.allow_degrade or ()), *caller.tenant.allow_degrade)))
        arrived = self._serving.now_ns()
        operation = "chat" if isinstance(body, ChatBody) else "text_completion"
        out: list[LlmRequest] = []
        for number, prompt in enumerate(prompts):
            seed, limit = base_seed(body), output_tokens(body, len(prompt.tokens), card)
            for choice in range(n):
                out.append(
                    LlmRequest(
                        # Clients repeat their ids; the span id keeps ours unique.
                        id=RequestId(f"req-{public_id}-{caller.trace.span_id}-{number * n + choice}"),
                        tenant=caller.tenant.id,
                        model=ModelId(card.id),
                        prompt=prompt.tokens,
                        sampling=sampling_params(body, limit, choice_seed(seed, choice)),
                        arrived_ns=arrived,
                        slo=caller.slo,
                        urgency=-(body.priority or 0),
                        block_hashes=prompt.hashes,
                        block_tokens=card.block_size,
                        cache_root=root,
                        tenant_weight=caller.tenant.weight,
                        session=body.session_id,
                        trace=caller.trace.context(number * n + choice, operation),
                        allow_degrade=allowed,
                    )
                )
        return tuple(out)


def _public_id(body: Generation, caller: Caller) -> str:
    if body.request_id is None:
        return caller.public_id
    if not caller.minted and body.request_id != caller.public_id:
        raise invalid("request_id", "`request_id` and the header `x-request-id` differ; send one of them.")
    return checked_id(body.request_id, "request_id")


def _answer(body: Generation, card: ModelCard, caller: Caller, stops: tuple[str, ...]) -> Answer:
    options = body.stream_options
    ends = () if body.ignore_eos else card.eos_token_ids
    chat, public_id = isinstance(body, ChatBody), _public_id(body, caller)
    return Answer(
        id=f"{'chatcmpl' if chat else 'cmpl'}-{public_id}",
        public_id=public_id,
        model=card.id,
        asked=None if body.model == card.id else body.model,
        created=int(time.time()),
        chat=chat,
        stream=bool(body.stream),
        n=body.n or 1,
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.include_usage and options.continuous_usage_stats),
        stream_interval=body.stream_interval or 1,
        stops=stops,
        include_stop=bool(body.include_stop_str_in_output),
        stop_tokens=frozenset((*ends, *(body.stop_token_ids or ()))),
        min_tokens=body.min_tokens or 0,
        skip_special=body.skip_special_tokens is not False,
        logprobs=logprobs_asked(body),
        return_token_ids=bool(body.return_token_ids),
        echo=isinstance(body, CompletionBody) and bool(body.echo),
    )
