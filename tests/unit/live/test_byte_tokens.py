import pytest

from headway.live.byte_tokens import EOS, START, VOCAB_SIZE, byte_tokenizer


@pytest.mark.parametrize("text", ["hello", "  two  spaces\n", "naïve – 中文 🙂", "\x00\x7f"])
def test_a_token_is_a_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode(text, add_special_tokens=True)
    assert list(tokens) == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_the_marks_of_the_template_are_tokens_and_have_no_text() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.vocab_size == VOCAB_SIZE
    text = tokenizer.render_chat([{"role": "user", "content": "hi"}])
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert (tokens[0], tokens.count(EOS), tokens.count(START)) == (START, 1, 2)
    assert tokenizer.decode(tokens) == "user\nhi\nassistant\n"
