import json

import pytest
from tests.unit.adapters.gateway.fakes import chat

from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED
from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.refusals import nearest
from headway.adapters.gateway.schema import ChatBody, CompletionBody
from headway.core.errors import RequestError


def refusal(**change: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_body(json.dumps(chat(**change)).encode(), ChatBody)
    assert caught.value.status == 400
    return caught.value


def test_the_input_of_the_other_route_is_named() -> None:
    assert "Did you mean `messages`?" in str(refusal(prompt="x"))
    with pytest.raises(RequestError, match="Did you mean `prompt`"):
        parse_body(b'{"model": "m", "messages": []}', CompletionBody)


def test_a_field_that_is_refused_is_never_suggested() -> None:
    assert "Did you mean" not in str(refusal(prompt_embed="x"))


# SPEC H1
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 1.1),
        ("presence_penalty", 3),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("max_tokens", "ten"),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("n", 0),
        ("seed", 2**63),
        ("stop_token_ids", [-1]),
        ("priority", "high"),
        ("messages", []),
        ("messages", None),
        ("top_logprobs", 21),
        ("stream_interval", 0),
        ("model", None),
        ("model", ""),
        ("cache_salt", ""),
        ("stop", 3),
        ("chat_template_kwargs", []),
    ],
)
def test_names_the_field_that_is_out_of_range(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert error.param is not None
    assert error.param.startswith(name)
    assert f"`{name}" in str(error)
    assert error.code in ("invalid_value", "invalid_type")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("Stream", "stream"),
        ("stop_tokens_ids", "stop_token_ids"),
    ],
)
def test_names_the_nearest_known_field(wrong: str, right: str) -> None:
    error = refusal(**{wrong: 1})
    assert (error.code, error.param) == ("unknown_parameter", wrong)
    assert f"Did you mean `{right}`?" in str(error)


def test_names_the_nearest_known_field_inside_an_object() -> None:
    error = refusal(stream_options={"include_usge": True})
    assert error.param == "stream_options.include_usge"
    assert "Did you mean `include_usage`?" in str(error)


def test_suggests_nothing_when_nothing_is_near() -> None:
    assert nearest("zzzzzz", ["temperature"]) == ""


def test_names_a_missing_field() -> None:
    with pytest.raises(RequestError, match="`messages`") as caught:
        parse_body(b'{"model": "toy"}', ChatBody)
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "messages")


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_refuses_what_is_not_served_by_name(name: str) -> None:
    error = refusal(**{name: {"some": "value"}})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert UNSUPPORTED[name].reason in str(error)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_takes_values_that_mean_the_same_as_leaving_it_out(name: str) -> None:
    for value in UNSUPPORTED[name].inert:
        assert parse_body(json.dumps(chat(**{name: value})).encode(), ChatBody) == parse_body(
            json.dumps(chat()).encode(), ChatBody
        )


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_takes_harmless_fields_with_any_value(name: str) -> None:
    assert parse_body(json.dumps(chat(**{name: {"a": [1]}})).encode(), ChatBody).model == "toy"


def test_null_is_the_same_as_absent() -> None:
    optional = {name: None for name in ChatBody.__struct_fields__ if name not in ("model", "messages")}
    assert parse_body(json.dumps(chat(**optional)).encode(), ChatBody) == parse_body(
        json.dumps(chat()).encode(), ChatBody
    )


def test_fields_of_the_tables_are_not_in_the_schema() -> None:
    assert not (set(HARMLESS) | set(UNSUPPORTED)) & set(ChatBody.__struct_fields__)
    assert (set(HARMLESS) | set(UNSUPPORTED)) & set(CompletionBody.__struct_fields__) == {"echo"}
    assert not set(HARMLESS) & set(UNSUPPORTED)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'{"model": "x", "messages": [',
        b'{"temperature": NaN}',
        b'{"model": "\\ud800", "messages": []}',
        b'{"model": "\xff\xfe", "messages": []}',
        b'{"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"chat_template_kwargs":'
        + b'{"a":' * 100_000
        + b"1"
        + b"}" * 100_000
        + b',"model":"m","messages":[{"role":"user"}]}',
    ],
)
def test_broken_json_is_the_callers_error(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_body(raw, ChatBody)
    assert caught.value.status == 400


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null"])
def test_a_body_must_be_an_object(raw: bytes) -> None:
    with pytest.raises(RequestError, match="object"):
        parse_body(raw, ChatBody)
