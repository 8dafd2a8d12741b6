"""The sampling fields of a body as `SamplingParams`, with the checks that need the model, the limits or two fields."""

import secrets
from typing import Final

from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.schema import ChatBody, CompletionBody
from headway.adapters.gateway.settings import LimitSettings
from headway.core.draw import draw_u64
from headway.core.errors import RequestError
from headway.core.request import SamplingParams

COMPLETION_TOKENS_DEFAULT: Final = 16  # OpenAI's
_SEED_BITS: Final = 63  # engines keep seeds in signed 64-bit integers

Generation = ChatBody | CompletionBody


def invalid(param: str, message: str, code: str = "invalid_value") -> RequestError:
    """Return the error for a field whose value cannot be served."""
    return RequestError(message, code=code, param=param)


def stop_strings(body: Generation, limits: LimitSettings) -> tuple[str, ...]:
    """Return the stop strings in the body's order."""
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > limits.stop:
        raise invalid("stop", f"`stop` has {len(stops)} strings; at most {limits.stop} are served.")
    for stop in stops:
        if not stop:
            raise invalid("stop", "`stop` holds an empty string, which would end every answer at once.")
        if len(stop) > limits.stop_chars:
            raise invalid("stop", f"A stop string has {len(stop)} characters; the limit is {limits.stop_chars}.")
    return stops


def requested_tokens(body: Generation) -> tuple[int | None, str]:
    """Return the asked limit of generated tokens and the field that holds it."""
    if isinstance(body, CompletionBody):
        return (COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens), "max_tokens"
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise invalid(
            "max_tokens", f"`max_tokens` is {old} and `max_completion_tokens` is {new}; send one of them, or the same."
        )
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")


def output_tokens(body: Generation, prompt_tokens: int, card: ModelCard) -> int:
    """Return the limit of generated tokens for a prompt of that length; by default a chat may fill the context."""
    asked, name = requested_tokens(body)
    room = card.max_model_len - prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        where = "messages" if isinstance(body, ChatBody) else "prompt"
        total = prompt_tokens + (asked or 1)
        shorter = f"the length of the {where}{' or `' + name + '`' if room >= 1 else ''}"
        raise RequestError(
            f"This model's maximum context length is {card.max_model_len} tokens. "
            f"However, you requested {total} tokens ({prompt_tokens} in the {where}, {asked or 1} in the completion). "
            f"Please reduce {shorter}.",
            code="context_length_exceeded",
            param=where,
        )
    limit = room if asked is None else asked
    if (body.min_tokens or 0) > limit:
        raise invalid("min_tokens", f"`min_tokens` is {body.min_tokens}, more than the {limit} tokens of `{name}`.")
    return limit


def check_vocabulary(body: Generation, card: ModelCard) -> None:
    """Refuse token ids that the model does not have."""
    named = {
        "stop_token_ids": body.stop_token_ids or (),
        "allowed_token_ids": body.allowed_token_ids or (),
        "logit_bias": [token for token, _ in logit_bias(body)],
    }
    for name, tokens in named.items():
        for token in tokens:
            if token >= card.vocab_size:
                raise invalid(name, f"`{name}` has token {token}; model `{card.id}` has {card.vocab_size} tokens.")


def logit_bias(body: Generation) -> tuple[tuple[int, float], ...]:
    """Return the biases by token id; JSON keys are strings."""
    out: dict[int, float] = {}
    for key, bias in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 11):
            raise invalid("logit_bias", f"`logit_bias` has the key {key[:32]!r}, which is not a token id.")
        out[int(key)] = bias
    return tuple(sorted(out.items()))


def logprobs_asked(body: Generation) -> int | None:
    """Return how many alternatives to report per token; None: no log-probabilities."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    if not body.logprobs:
        if body.top_logprobs:
            raise invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`.")
        return None
    return body.top_logprobs or 0


def base_seed(body: Generation) -> int:
    """Return the client's seed, or a fresh one."""
    return secrets.randbits(_SEED_BITS) if body.seed is None else body.seed % (1 << _SEED_BITS)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one choice of a prompt: the first keeps the base, so that n=1 and n=2 begin alike."""
    return seed if choice == 0 else draw_u64(seed, "choice", 0, choice) % (1 << _SEED_BITS)


def sampling_params(body: Generation, max_tokens: int, seed: int) -> SamplingParams:
    """Return what the engine samples by. Defaults are OpenAI's and vLLM's, never a model's own."""

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=given(body.temperature, 1.0),
        top_p=given(body.top_p, 1.0),
        top_k=max(body.top_k or 0, 0),  # vLLM's -1 means off, as 0 does
        min_p=given(body.min_p, 0.0),
        repetition_penalty=given(body.repetition_penalty, 1.0),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        seed=seed,
        logprobs=logprobs_asked(body),
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=logit_bias(body),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
    )
