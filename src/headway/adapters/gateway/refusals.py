"""What a client is told of a body that does not fit its struct: the field, what it may be, in JSON's words."""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import inspect

from headway.adapters.gateway.schema import ContentPart, Message, StreamOptions
from headway.core.errors import RequestError

SAID_CHARS_MAX: Final = 512  # of what is wrong, which may quote a value
_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_UNKNOWN: Final = re.compile(r"unknown field `(.*)`")
_MISSING: Final = re.compile(r"missing required field `(.*)`")
_PATTERN: Final = re.compile(r" matching regex .*")
_TYPE: Final = re.compile(r"`([a-z |]+)`")
_PART: Final = re.compile(r"\[[^]]*\]|[^.[]+")
_NESTED: Final = tuple(name for struct in (Message, ContentPart, StreamOptions) for name in struct.__struct_fields__)
_JSON: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
_PYTHON: Final = {"True": "true", "False": "false"}


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean x?`, or nothing when no known name is near."""
    close = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.6)
    return f" Did you mean `{close[0]}`?" if close else ""


def listed(names: Iterable[str]) -> str:
    """`a`, `b`."""
    return ", ".join(f"`{name}`" for name in names)


def no_pictures() -> RequestError:
    """What the routes of pictures and videos answer where no model makes any."""
    message = "No model here makes images or videos; configure [[diffusion]]."
    return RequestError(message, status=404, code="model_not_found", param="model")


def refusal(message: str, kind: type[msgspec.Struct]) -> RequestError:
    """Turn msgspec's message on a body of `kind` into ours: the field first, then what is wrong."""
    path = _PATH.search(message)
    param = path[1].replace("[...]", "[]") if path else ""
    said = message[: path.start()] if path else message
    said = said if len(said) <= SAID_CHARS_MAX else f"{said[:SAID_CHARS_MAX]}…"
    if missing := _MISSING.search(said):
        name = f"{param}.{missing[1]}" if param else missing[1]
        return RequestError(f"Missing required parameter: `{name}`.", code="missing_required_parameter", param=name)
    if unknown := _UNKNOWN.search(said):
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        hint = nearest(unknown[1], _NESTED)
        return RequestError(f"Unknown parameter: `{name[:256]}`.{hint}", code="unknown_parameter", param=name[:256])
    code = "invalid_type" if ", got " in said else "invalid_value"
    words = _words(said)
    if allowed := allowed_at(kind, param):
        got = words.removeprefix("Invalid enum value ").partition(", got ")
        words = f"Expected one of {listed(allowed)}; got {got[2] or _PYTHON.get(got[0], got[0])}"
    if not param:
        return RequestError(f"The body is invalid: {words}.", code=code)
    return RequestError(f"Invalid `{param}`: {words[:1].lower()}{words[1:]}.", code=code, param=param)


def _words(said: str) -> str:
    said = _PATTERN.sub(" of another form", said)
    return _TYPE.sub(lambda found: _either(found[1].split(" | ")), said)


def _either(types: list[str]) -> str:
    words = [_JSON.get(name, name) for name in types]
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def allowed_at(kind: type[msgspec.Struct], param: str) -> list[str]:
    """The values of the enum that `param` is in a body of `kind`, as JSON writes them; none where it is no enum."""
    found: list[inspect.Type] = [inspect.type_info(kind)]
    for part in _PART.findall(param):
        found = [inner for one in found for inner in _inside(one, part)]
    literals = [one for whole in found for one in _flat(whole) if isinstance(one, inspect.LiteralType)]
    return [value if isinstance(value, str) else str(value).lower() for one in literals for value in one.values]


def _inside(whole: inspect.Type, part: str) -> Iterator[inspect.Type]:
    for one in _flat(whole):
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == part)
        elif isinstance(one, inspect.ListType) and part.startswith("["):
            yield one.item_type


def _flat(whole: inspect.Type) -> Iterator[inspect.Type]:
    """A type, or the members of a union."""
    if isinstance(whole, inspect.UnionType):
        for one in whole.types:
            yield from _flat(one)
    elif isinstance(whole, inspect.Metadata):
        yield from _flat(whole.type)
    else:
        yield whole
