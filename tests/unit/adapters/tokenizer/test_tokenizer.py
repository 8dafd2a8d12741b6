import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.adapters.gateway.fakes import EOS, TEMPLATE, toy_backend, toy_tokenizer

from headway.adapters.tokenizer import TemplateError, Tokenizer

TOY = toy_tokenizer()


def folder(path: Path, **config: object) -> Path:
    toy_backend().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_reads_a_hugging_face_folder(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path, chat_template=TEMPLATE, eos_token={"content": EOS}))
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]).endswith("assistant\n")


def test_the_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}")
    tokenizer = Tokenizer.from_folder(folder(tmp_path, chat_template="old", eos_token=EOS))
    assert tokenizer.render_chat([]) == EOS


def test_of_named_templates_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert Tokenizer.from_folder(folder(tmp_path, chat_template=named)).render_chat([]) == "d"


def test_without_a_template_messages_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path))
    with pytest.raises(TemplateError, match="/v1/completions"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@settings(deadline=None)
def test_the_lower_bound_on_tokens_holds(text: str) -> None:
    assert TOY.tokens_at_least(len(text)) <= len(TOY.encode(text, add_special_tokens=False))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@settings(deadline=None)
def test_bytes_of_tokens_spell_the_text(text: str) -> None:
    tokens = TOY.encode(text, add_special_tokens=False)
    assert b"".join(map(TOY.spell_bytes, tokens)).decode() == TOY.decode(tokens, skip_special_tokens=False)


def test_a_special_token_has_a_spelling() -> None:
    (eos,) = TOY.encode(EOS, add_special_tokens=False)
    assert (TOY.spell(eos), TOY.name(eos)) == (EOS, EOS)


def test_unknown_tokens_have_no_text() -> None:
    assert (TOY.spell(10**6), TOY.name(10**6), TOY.spell_bytes(10**6)) == ("", "", b"")
