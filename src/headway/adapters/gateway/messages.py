"""Chat messages as a template takes them: role and plain text. What only tools or media use is refused by name."""

from collections.abc import Sequence

from headway.adapters.gateway.schema import ContentPart, Message
from headway.core.errors import RequestError


def plain_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return role, content and name of each message; `developer` is called `system`, as templates know it."""
    return [_plain(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _plain(message: Message, at: str) -> dict[str, object]:
    if message.role in ("tool", "function"):
        raise _unsupported(f"{at}.role", f"role `{message.role}` needs tool calling, which is not implemented")
    for name in ("tool_calls", "tool_call_id", "function_call", "audio"):
        if getattr(message, name):
            raise _unsupported(f"{at}.{name}", "tool calls and audio are not implemented")
    out: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{at}.content"),
    }
    if message.name is not None:
        out["name"] = message.name
    return out


def _text(content: str | list[ContentPart] | None, at: str) -> str:
    if content is None:
        raise _missing(at)
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part, f"{at}[{number}]") for number, part in enumerate(content))


def _part_text(part: ContentPart, at: str) -> str:
    if part.type != "text":
        raise _unsupported(f"{at}.type", f"content of type `{part.type[:64]}` is not served, only text")
    if part.text is None:
        raise _missing(f"{at}.text")
    return part.text


def _missing(param: str) -> RequestError:
    return RequestError(f"Missing required parameter: `{param}`.", code="missing_required_parameter", param=param)


def _unsupported(param: str, why: str) -> RequestError:
    return RequestError(f"`{param}` is not supported: {why}.", code="unsupported_parameter", param=param)
