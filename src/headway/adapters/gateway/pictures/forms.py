"""Forms (`multipart/form-data`) as they come: bounded, files apart from fields, bracketed keys to nested values.

Clients send every nested field of a video or an edit this way: `lora[][id]`, `lora[0][scale]`, `image[]`.
"""

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headway.core.errors import RequestError

if TYPE_CHECKING:  # it exists for type checkers only
    from python_multipart.multipart import MultipartCallbacks

PARTS_MAX: Final = 128
FIELD_BYTES_MAX: Final = 256 * 1024
_KEY: Final = re.compile(r"([^\[\]]{1,64})((?:\[[^\[\]]{0,64}\])*)")
_STEP: Final = re.compile(r"\[([^\[\]]*)\]")
_DEPTH_MAX: Final = 4
_FILES: Final = {
    "image": "images",
    "image[]": "images",
    "mask": "mask",
    "input_reference": "input_reference",
    "image_prompt": "image_prompt",
}

Value = str | list["Value"] | dict[str, "Value"]


class Form(msgspec.Struct):
    """What a form held: nested fields, and files by the name of the field that takes them, in order."""

    fields: dict[str, Value]
    files: dict[str, list[bytes]]


class _Part:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.name_at = self.value_at = b""
        self.body = bytearray()


class _Reader:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bool, bytes]] = []  # key, is a file, content
        self.is_complete = False
        self._part = _Part()

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._content,
            "on_part_end": self._end,
            "on_end": self._complete,
        }

    def _begin(self) -> None:
        if len(self.parts) >= PARTS_MAX:
            raise _wrong(f"The form has more than {PARTS_MAX} parts.")
        self._part = _Part()

    def _header_name(self, raw: bytes, start: int, end: int) -> None:
        self._part.name_at += raw[start:end]

    def _header_value(self, raw: bytes, start: int, end: int) -> None:
        self._part.value_at += raw[start:end]

    def _header_end(self) -> None:
        part = self._part
        part.headers[part.name_at.decode("latin-1").lower()] = part.value_at.decode("latin-1")
        part.name_at = part.value_at = b""

    def _content(self, raw: bytes, start: int, end: int) -> None:
        self._part.body += raw[start:end]

    def _end(self) -> None:
        part = self._part
        _, options = parse_options_header(part.headers.get("content-disposition", ""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if not name:
            raise _wrong("A part of the form has no name.")
        is_file = b"filename" in options or (name in _FILES and "content-type" in part.headers)
        if not is_file and len(part.body) > FIELD_BYTES_MAX:
            raise _wrong(f"Form field `{name[:64]}` is larger than {FIELD_BYTES_MAX} bytes.", name)
        self.parts.append((name, is_file, bytes(part.body)))

    def _complete(self) -> None:
        self.is_complete = True


async def read_form(content_type: str, body: AsyncIterator[bytes]) -> Form:
    """Parse a form while it comes. Raises RequestError; and what `body` raises."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise _wrong("The content-type of the form names no boundary.")
    reader = _Reader()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        async for part in body:
            parser.write(part)
        parser.finalize()
    except FormParserError as error:
        raise _wrong(f"The form is broken: {error}.") from None
    if not reader.is_complete:
        raise _wrong("The form ends before its last boundary.")
    return _gathered(reader.parts)


def _gathered(parts: list[tuple[str, bool, bytes]]) -> Form:
    form = Form({}, {})
    for name, is_file, body in parts:
        if is_file:
            field = _FILES.get(name)
            if field is None:
                raise _wrong(f"The form has a file `{name[:64]}`; files are {', '.join(_FILES)}.", name)
            form.files.setdefault(field, []).append(body)
            continue
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise _wrong(f"Form field `{name[:64]}` is not UTF-8.", name) from None
        place(form.fields, name, text)
    return form


def place(fields: dict[str, Value], key: str, text: str) -> None:
    """Put a field where its bracketed key says. Raises RequestError for a key that is broken or given twice."""
    match = _KEY.fullmatch(key)
    steps = [] if match is None else _STEP.findall(match[2])
    if match is None or len(steps) > _DEPTH_MAX:
        raise _wrong(f"Form field `{key[:64]}` is no name; nested ones look like `lora[0][id]`.", key)
    at: dict[str, Value] | list[Value] = fields
    names: list[str] = [match[1], *steps]
    for number, name in enumerate(names):
        rest = names[number + 1 :]
        if number and _is_list(name) is isinstance(at, dict):
            raise _wrong(f"Form field `{key[:64]}` is one of a list, and others are named, or the other way.", key)
        if isinstance(at, dict):
            if not rest:
                if name in at:
                    raise _wrong(f"Form field `{key[:64]}` is given twice.", key)
                at[name] = text
                return
            at = _into(at.setdefault(name, [] if _is_list(rest[0]) else {}), key)
        elif not rest:
            at.append(text)
            return
        else:
            at = _into(_element(at, name, rest[0]), key)


def _is_list(step: str) -> bool:
    return step == "" or _is_number(step)


def _is_number(step: str) -> bool:
    return step.isascii() and step.isdigit()  # `²` is a digit too, and no number


def _element(items: list[Value], step: str, inner: str) -> Value:
    """The element that `[]` or `[k]` names: `[]` begins a new one when the one before has the field already."""
    last = items[-1] if items else None
    if _is_number(step):
        is_new = int(step) >= len(items)
    else:
        is_new = not isinstance(last, dict) or inner in last
    if is_new:
        items.append([] if _is_list(inner) else {})
    return items[int(step)] if _is_number(step) and not is_new else items[-1]


def _into(value: Value, key: str) -> dict[str, Value] | list[Value]:
    if isinstance(value, str):
        raise _wrong(f"Form field `{key[:64]}` is a text and holds others at once.", key)
    return value


def _wrong(message: str, param: str | None = None) -> RequestError:
    return RequestError(message, code="invalid_form", param=None if param is None else param[:64])
