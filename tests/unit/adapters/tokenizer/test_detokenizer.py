import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.adapters.gateway.fakes import EOS, toy_tokenizer

from headway.adapters.tokenizer import Tokenizer
from headway.adapters.tokenizer.detokenizer import HELD_TOKENS_MAX, WindowDetokenizer, byte_alphabet

TOY = toy_tokenizer()
TEXTS = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("你好👩‍👩‍👧é☃ \n")), max_size=40
)


def byte_fallback() -> Tokenizer:
    """A SentencePiece-like BPE: `▁` for spaces, `<0xNN>` for bytes without a token, first space stripped."""
    pieces = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghij", "▁a", "bc", "▁bc"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("b", "c"), ("▁", "bc")]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges, byte_fallback=True))
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend)


FALLBACK = byte_fallback()


def decoded(tokenizer: Tokenizer, tokens: tuple[int, ...], *, skip: bool = True) -> str:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()


@given(TEXTS)
@settings(deadline=None)
def test_byte_level_text_comes_back_exactly(text: str) -> None:
    tokens = TOY.encode(text, add_special_tokens=False)
    assert decoded(TOY, tokens) == TOY.decode(tokens)


@given(st.lists(st.integers(0, TOY.vocab_size + 5), max_size=20), st.booleans())
@settings(deadline=None)
def test_any_byte_level_tokens_equal_the_full_decode(tokens: list[int], skip: bool) -> None:
    assert decoded(TOY, tuple(tokens), skip=skip) == TOY.decode(tokens, skip_special_tokens=skip)


@given(TEXTS)
@settings(deadline=None)
def test_byte_fallback_text_comes_back_exactly(text: str) -> None:
    tokens = FALLBACK.encode(text, add_special_tokens=False)
    assert decoded(FALLBACK, tokens) == FALLBACK.decode(tokens)


@given(TEXTS)
@settings(max_examples=50, deadline=None)
def test_only_whole_characters_come_out(text: str) -> None:
    for tokenizer in (TOY, FALLBACK):
        detokenizer = tokenizer.detokenizer()
        out = ""
        for token in tokenizer.encode(text, add_special_tokens=False):
            out += detokenizer.push(token)
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)).startswith(out)


@pytest.mark.parametrize("tokenizer", [TOY, FALLBACK], ids=["bytes", "window"])
def test_an_emoji_is_held_until_its_last_byte(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("👍", add_special_tokens=False)[-4:]
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(token) for token in tokens] == ["", "", "", "👍"]


def test_an_incomplete_character_comes_out_at_the_end() -> None:
    tokens = TOY.encode("👍", add_special_tokens=False)[:2]
    assert decoded(TOY, tokens) == "\ufffd"


def test_special_tokens_are_skipped_or_spelled() -> None:
    eos = TOY.encode(EOS, add_special_tokens=False)
    assert (decoded(TOY, eos), decoded(TOY, eos, skip=False)) == ("", EOS)


def test_the_window_stays_short() -> None:
    longest = 0

    def decode(tokens: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return FALLBACK.decode(tokens)

    rng = random.Random(1)
    detokenizer = WindowDetokenizer(decode)
    for _ in range(2000):
        detokenizer.push(rng.randrange(FALLBACK.vocab_size))
    assert longest <= 2 * HELD_TOKENS_MAX


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
