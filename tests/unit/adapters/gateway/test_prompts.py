import asyncio
import threading

import pytest
from tests.unit.adapters.gateway.fakes import EOS, START, toy_tokenizer

from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.prompts import (
    INLINE_CHARS_MAX,
    PROBE_CHARS_PER_TOKEN,
    Encoder,
    chat_text,
    check_length,
    encode_prompt,
    is_long,
    raw_prompts,
    salted_root,
)
from headway.adapters.gateway.schema import ChatBody, CompletionBody, Message
from headway.adapters.gateway.settings import LimitSettings
from headway.core.errors import RequestError
from headway.core.ids import TenantId

TOY = toy_tokenizer()
CARD = ModelCard("toy", ("text",), 100, 0, 16, TOY.vocab_size)
LIMITS = LimitSettings()


def body(prompt: object = "x", **fields: object) -> CompletionBody:
    return CompletionBody(model="toy", prompt=prompt, **fields)


def conversation(**fields: object) -> ChatBody:
    messages = [Message("user", "hi"), Message("assistant", "well, ")]
    return ChatBody(model="toy", messages=messages, **fields)


@pytest.mark.parametrize(
    ("prompt", "sources"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_is_text_tokens_or_a_list_of_either(prompt: object, sources: list[object]) -> None:
    # SPEC H1
    assert raw_prompts(body(prompt), LIMITS) == sources


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1], 2], ["a", [1]], ["a"] * 129])
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(RequestError) as caught:
        raw_prompts(body(prompt), LIMITS)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("source", ["", []])
def test_a_prompt_without_tokens_is_refused(source: str | list[int]) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        encode_prompt(source, body(), TOY, CARD)


def test_a_token_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match=str(TOY.vocab_size)):
        encode_prompt([TOY.vocab_size], body(), TOY, CARD)


def test_truncation_keeps_the_end() -> None:
    assert encode_prompt([1, 2, 3, 4], body(truncate_prompt_tokens=2), TOY, CARD) == (3, 4)
    assert encode_prompt([5] * 500, body(truncate_prompt_tokens=-1), TOY, CARD) == (5,) * 99
    with pytest.raises(RequestError, match="truncate_prompt_tokens"):
        encode_prompt([1], body(truncate_prompt_tokens=0), TOY, CARD)


def test_a_text_that_cannot_fit_is_refused_without_encoding_it() -> None:
    class Counting:
        encodes = 0

        def tokens_at_least(self, characters: int) -> int:
            return TOY.tokens_at_least(characters)

        def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
            self.encodes += 1
            return TOY.encode(text, add_special_tokens=add_special_tokens)

    counting = Counting()
    with pytest.raises(RequestError) as caught:
        encode_prompt("x" * 100_000, body(), counting, CARD)
    assert caught.value.code == "context_length_exceeded"
    assert counting.encodes == 0


def test_a_text_that_is_far_too_long_is_not_encoded_to_its_end() -> None:
    longest = 0

    class Watching:
        def tokens_at_least(self, characters: int) -> int:
            return 1

        def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
            nonlocal longest
            longest = max(longest, len(text))
            return TOY.encode(text, add_special_tokens=add_special_tokens)

    with pytest.raises(RequestError) as caught:
        encode_prompt("a b " * 50_000, body(), Watching(), CARD)
    assert caught.value.code == "context_length_exceeded"
    assert longest == CARD.max_model_len * PROBE_CHARS_PER_TOKEN


def test_a_text_over_the_limit_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="limit is 3") as caught:
        check_length("four", "prompt", LimitSettings(prompt_chars=3))
    assert caught.value.param == "prompt"


def test_a_chat_ends_where_the_assistant_begins() -> None:
    assert chat_text(conversation(), TOY, LIMITS).endswith(f"{EOS}\n{START}assistant\n")
    assert chat_text(conversation(add_generation_prompt=False), TOY, LIMITS).endswith(f"well, {EOS}\n")
    assert chat_text(conversation(continue_final_message=True), TOY, LIMITS).endswith("well,")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_text(conversation(**fields), TOY, LIMITS)
    assert caught.value.param == param


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(RequestError, match="limit is 1"):
        chat_text(conversation(), TOY, LimitSettings(messages=1))


def test_the_root_tells_models_tenants_and_salts_apart() -> None:
    # SPEC B2
    other = ModelCard("other", ("text",), 100, 0, 16, 10)
    roots = [
        salted_root(card, TenantId(tenant), salt)
        for card in (CARD, other)
        for tenant in ("a", "b", '["a"')
        for salt in (None, "", "a", "b")
    ]
    assert len(set(roots)) == len(roots)


def test_long_texts_are_encoded_in_a_thread() -> None:
    async def run(long: bool) -> str:
        encoder = Encoder()
        try:
            return await encoder.run(lambda: threading.current_thread().name, long=long)
        finally:
            encoder.close()

    assert asyncio.run(run(True)).startswith("encode")
    assert not asyncio.run(run(False)).startswith("encode")
    assert [is_long(["x" * n]) for n in (INLINE_CHARS_MAX, INLINE_CHARS_MAX + 1)] == [False, True]
    assert is_long([[1] * 5000])
