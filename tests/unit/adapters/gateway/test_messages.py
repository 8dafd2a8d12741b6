import pytest

from headway.adapters.gateway.messages import plain_messages
from headway.adapters.gateway.schema import ContentPart, Message
from headway.core.errors import RequestError


def test_developer_is_called_system() -> None:
    assert plain_messages([Message("developer", "Be brief.")]) == [{"role": "system", "content": "Be brief."}]


def test_text_parts_are_joined_by_lines() -> None:
    parts = [ContentPart("text", "a"), ContentPart("text", "b")]
    assert plain_messages([Message("user", parts, name="bob")]) == [{"role": "user", "content": "a\nb", "name": "bob"}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Message("user"), "messages[0].content"),
        (Message("user", [ContentPart("text")]), "messages[0].content[0].text"),
        (Message("user", [ContentPart("image_url", image_url={})]), "messages[0].content[0].type"),
        (Message("tool", "x"), "messages[0].role"),
        (Message("assistant", "x", tool_calls=[{}]), "messages[0].tool_calls"),
        (Message("assistant", "x", function_call={"name": "f"}), "messages[0].function_call"),
    ],
)
def test_names_what_is_missing_or_not_served(message: Message, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        plain_messages([message])
    assert caught.value.param == param


def test_empty_tool_calls_are_no_tool_calls() -> None:
    assert plain_messages([Message("assistant", "x", tool_calls=[])]) == [{"role": "assistant", "content": "x"}]
