"""What clients are told of bodies that do not fit, over all bodies and all their fields."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headway.adapters.gateway.errors import told
from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.pictures.schema import (
    EditBody,
    ImageBody,
    RemixBody,
    SessionBody,
    SessionChange,
    VariationBody,
    VideoBody,
)
from headway.adapters.gateway.prepare import unknown_model
from headway.adapters.gateway.refusals import allowed_at
from headway.adapters.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, EstimateBody, TokenizeBody
from headway.core.errors import RequestError

BODIES = [
    ChatBody,
    CompletionBody,
    TokenizeBody,
    DetokenizeBody,
    EstimateBody,
    ImageBody,
    EditBody,
    VariationBody,
    VideoBody,
    RemixBody,
    SessionBody,
    SessionChange,
]
FULL = {
    "model": "m",
    "prompt": "p",
    "messages": [{"role": "user", "content": "x"}],
    "endpoint": "/v1/videos",
    "body": {},
    "tokens": [1],
}
WRONG: tuple[object, ...] = (
    "wrong",
    "",
    7,
    -(2**70),
    2.5,
    True,
    [],
    ["wrong"],
    [7],
    [None],
    {},
    {"a": "b"},
    [{"role": 7}],
)
SRC = Path(__file__).parents[4] / "src"


def refusals(kind: type[msgspec.Struct]) -> Iterator[tuple[str, object, RequestError]]:
    base = {name: value for name, value in FULL.items() if name in kind.__struct_fields__}
    for name in kind.__struct_fields__:
        for value in WRONG:
            try:
                parse_body(json.dumps({**base, name: value}).encode(), kind, {})
            except RequestError as error:
                yield name, value, error


@pytest.mark.parametrize("kind", BODIES)
def test_no_message_speaks_of_python(kind: type[msgspec.Struct]) -> None:
    # SPEC H1
    seen = list(refusals(kind))
    assert seen
    for name, value, error in seen:
        assert not re.search(r"\||\bstr\b|\bint\b|\bfloat\b|\bbool\b|regex|NoneType|None", str(error)), (
            name,
            value,
            str(error),
        )
        assert error.code, str(error)
        assert error.param is None or name in error.param


@pytest.mark.parametrize("kind", BODIES)
def test_enum_errors_list_what_is_allowed(kind: type[msgspec.Struct]) -> None:
    # SPEC H1
    wrong = [(error, allowed_at(kind, error.param or "")) for _, _, error in refusals(kind)]
    for error, allowed in wrong:
        assert "enum" not in str(error)
        for value in allowed:
            assert f"`{value}`" in str(error)
    enums = {error.param for error, allowed in wrong if allowed}
    told_of = {"output_format", "response_format", "endpoint", "allow_degrade", "spaces_between_special_tokens"}
    assert {(name or "").partition("[")[0] for name in enums} >= told_of & set(kind.__struct_fields__)
    if "messages" in kind.__struct_fields__:
        assert "messages[0].role" in enums


def test_enum_errors_say_what_came() -> None:
    with pytest.raises(RequestError, match=r"`jpeg`, `png`, `webp`; got 'gif'"):
        parse_body(b'{"prompt": "p", "output_format": "gif"}', ImageBody)
    with pytest.raises(RequestError, match="got an integer"):
        parse_body(b'{"prompt": "p", "output_format": 5}', ImageBody)
    with pytest.raises(RequestError, match="got false"):
        parse_body(b'{"model": "m", "prompt": "p", "spaces_between_special_tokens": false}', CompletionBody)


def test_a_refusal_quotes_no_more_of_a_body_than_people_read() -> None:
    raw = json.dumps({"prompt": "p", "output_format": "g" * 100_000}).encode()
    with pytest.raises(RequestError, match=r"`jpeg`, `png`, `webp`; got 'ggg.*…") as caught:
        parse_body(raw, ImageBody)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("raw", [b"", b" \n"])
def test_an_empty_body_is_called_empty(raw: bytes) -> None:
    with pytest.raises(RequestError, match="The body is empty") as caught:
        parse_body(raw, ImageBody)
    assert caught.value.code == "invalid_json"


def test_an_unknown_model_comes_with_the_nearest_and_with_all() -> None:
    # SPEC H1
    message = str(unknown_model("tiny-flx", ["SmolLM2-135M", "tiny-flux"]))
    assert "Did you mean `tiny-flux`?" in message
    assert message.endswith("There are: `SmolLM2-135M`, `tiny-flux`.")
    many = str(unknown_model("x", [f"m{number}" for number in range(30)]))
    assert "`m19`, ..." in many
    assert "m20" not in many


def test_every_refusal_of_ours_has_a_code() -> None:
    # SPEC H1
    found = 0
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("RequestError", "KeyTaken")
            ):
                found += 1
                code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
                assert code is not None, f"{path}:{node.lineno}"
                assert not isinstance(code, ast.Constant) or code.value, f"{path}:{node.lineno}"
    assert found > 80


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        ("request img_15e56b: the mask has no alpha channel", "The mask has no alpha channel"),
        ("request req-3-0-1 needs 9 KV blocks", "The request needs 9 KV blocks"),
        ("request body is large", "request body is large"),
        ("The request was cancelled.", "The request was cancelled."),
    ],
)
def test_the_inner_id_is_not_shown(message: str, seen: str) -> None:
    assert told(message) == seen
