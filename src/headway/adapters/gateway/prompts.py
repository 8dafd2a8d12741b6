"""Prompts to tokens: templates, text, token ids. Long texts are encoded in a thread, so that the loop never waits."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from headway.adapters.gateway.messages import plain_messages
from headway.adapters.gateway.parse import BodyT, parse_body
from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.sampling import Generation, invalid, output_tokens
from headway.adapters.gateway.schema import ChatBody, CompletionBody, TokenizeBody
from headway.adapters.gateway.settings import LimitSettings
from headway.adapters.tokenizer import TemplateError, Tokenizer
from headway.core.blockhash import block_hashes, cache_root
from headway.core.errors import RequestError
from headway.core.ids import TenantId

# About 1 ms of encoding; a hop to a thread costs a tenth of that.
INLINE_CHARS_MAX: Final = 2000
INLINE_TOKENS_MAX: Final = 2000
PROBE_CHARS_PER_TOKEN: Final = 16  # ordinary text has 3 to 5

INLINE_BODY_BYTES: Final = 256 * 1024

T = TypeVar("T")


class Prompt(msgspec.Struct, frozen=True):
    """One prompt, ready for the ring."""

    tokens: tuple[int, ...]
    hashes: tuple[bytes, ...]
    text: str | None = None  # as sent; None for token ids


class Encoder:
    """Turns prompts into tokens and block hashes, off the loop when they are long."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode")

    async def parse(self, raw: bytes, kind: type[BodyT]) -> BodyT:
        """`parse_body`, in a thread when the body is large: a million numbers take tenths of a second to check."""
        return await self.run(lambda: parse_body(raw, kind), long=len(raw) > INLINE_BODY_BYTES)

    async def run(self, work: Callable[[], T], *, long: bool) -> T:
        """Run `work` here, or in a thread when it is long."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work) if long else work()

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False)


def salted_root(card: ModelCard, tenant: TenantId, cache_salt: str | None) -> bytes:
    """Return the root of the prefix chain: tenants, and salts within a tenant, never share a block (SPEC B2)."""
    salt = msgspec.json.encode([tenant, cache_salt]).decode()
    return cache_root(model=card.id, salt=salt)


def chat_text(body: ChatBody | TokenizeBody, tokenizer: Tokenizer, limits: LimitSettings) -> str:
    """Return the prompt of a conversation. Raises RequestError when the template refuses it."""
    messages = body.messages or []
    if len(messages) > limits.messages:
        raise invalid("messages", f"`messages` has {len(messages)} entries; the limit is {limits.messages}.")
    add_generation = body.add_generation_prompt
    if body.continue_final_message and add_generation:
        raise invalid(
            "continue_final_message", "`continue_final_message` and `add_generation_prompt` exclude each other."
        )
    try:
        return tokenizer.render_chat(
            plain_messages(messages),
            add_generation_prompt=not body.continue_final_message if add_generation is None else add_generation,
            continue_final_message=bool(body.continue_final_message),
            extra=_template_names(body.chat_template_kwargs),
        )
    except TemplateError as error:
        raise RequestError(str(error)[:1000], code="invalid_value", param="messages") from None


def _template_names(extra: dict[str, object] | None) -> dict[str, object]:
    for name in ("messages", "add_generation_prompt", "continue_final_message"):
        if extra and name in extra:
            raise invalid("chat_template_kwargs", f"`chat_template_kwargs.{name}` is a field of the body itself.")
    return extra or {}


def raw_prompts(body: CompletionBody, limits: LimitSettings) -> list[str | list[int]]:
    """Return the prompts of a completion: one string, one token list, or a list of either kind."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid("prompt", "`prompt` is an empty list.")
    if all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    prompts = [item for item in given if not isinstance(item, int)]
    if len(prompts) != len(given) or len({type(item) for item in prompts}) > 1:
        raise invalid("prompt", "`prompt` mixes strings, token ids and token lists; send one kind.", "invalid_type")
    if len(prompts) > limits.prompts:
        raise invalid("prompt", f"`prompt` has {len(prompts)} entries; the limit is {limits.prompts}.")
    return prompts


def check_length(text: str, param: str, limits: LimitSettings) -> None:
    """Refuse a text that would hold an encoding thread for long. Raises RequestError."""
    if len(text) > limits.prompt_chars:
        raise invalid(param, f"The text has {len(text)} characters; the limit is {limits.prompt_chars}.")


def _least_tokens(text: str, tokenizer: Tokenizer, card: ModelCard) -> int:
    """Return a lower bound on the tokens of `text`, at the price of encoding a part that would fill the context twice.

    Cutting a text changes the tokens at the cut only; half of the part's count is safe for any text.
    """
    least = tokenizer.tokens_at_least(len(text))
    part = card.max_model_len * PROBE_CHARS_PER_TOKEN
    if least < card.max_model_len and len(text) > part:
        least = max(least, len(tokenizer.encode(text[:part], add_special_tokens=False)) // 2)
    return least


def encode_prompt(source: str | list[int], body: Generation, tokenizer: Tokenizer, card: ModelCard) -> tuple[int, ...]:
    """Return the prompt's tokens, truncated as asked. Raises RequestError when they cannot fit."""
    keep = body.truncate_prompt_tokens
    if isinstance(source, str):
        if keep is None and (least := _least_tokens(source, tokenizer, card)) >= card.max_model_len:
            output_tokens(body, least, card)  # raises, before the time of encoding it all is spent
        special = isinstance(body, CompletionBody) if body.add_special_tokens is None else body.add_special_tokens
        tokens = tokenizer.encode(source, add_special_tokens=special)
    else:
        tokens = tuple(source)
        over = next((token for token in tokens if token >= card.vocab_size), None)
        if over is not None:
            raise invalid("prompt", f"`prompt` has token {over}; model `{card.id}` has {card.vocab_size} tokens.")
    if keep is not None:
        limit = card.max_model_len - 1 if keep == -1 else keep
        if limit < 1:
            raise invalid("truncate_prompt_tokens", "`truncate_prompt_tokens` must be -1 or at least 1.")
        tokens = tokens[-limit:]
    if not tokens:
        raise invalid("prompt", "The prompt has no tokens.")
    return tokens


def is_long(sources: Sequence[str | list[int]]) -> bool:
    """True when encoding and hashing these prompts would hold up the loop."""
    chars = sum(len(source) for source in sources if isinstance(source, str))
    tokens = sum(len(source) for source in sources if not isinstance(source, str))
    return chars > INLINE_CHARS_MAX or tokens > INLINE_TOKENS_MAX


def hashed(tokens: tuple[int, ...], root: bytes, card: ModelCard, text: str | None) -> Prompt:
    """Return the prompt with its block hashes."""
    return Prompt(tokens, block_hashes(root, tokens, card.block_size), text)
