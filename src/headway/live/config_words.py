"""How types and values of the configuration are called in messages and in the reference: TOML's words, not Python's."""

import json
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Final, Literal, Union, get_args, get_origin

import msgspec

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAMES: Final = {"int": "integer", "str": "text", "bool": "true or false", "float": "number", "object": "value"}


def join(path: str, name: str) -> str:
    """The key `name` inside `path`, quoted where TOML wants it."""
    part = name if _BARE.fullmatch(name) else json.dumps(name)
    return f"{path}.{part}" if path else part


def type_text(hint: object) -> str:
    """A type as an operator reads it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        parts = "character(s)" if arguments[0] is str else "entries"
        limits = [text for meta in arguments[1:] if isinstance(meta, msgspec.Meta) for text in _limits(meta, parts)]
        return type_text(arguments[0]) + (f" ({', '.join(limits)})" if limits else "")
    if origin in (Union, UnionType):
        kinds = tags(hint)
        if kinds is not None:
            return f"table by `{kinds[0]}`: {', '.join(toml_text(kind) for kind in kinds[1])}"
        return " or ".join(type_text(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f'`"{argument}"`' for argument in arguments)
    if origin is dict:
        return f"table of {type_text(arguments[1])}"
    if origin in (tuple, list):
        return f"list of {type_text(arguments[0])}"
    if hint is NoneType:
        return "unset"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = ", ".join(field.name for field in msgspec.structs.fields(hint))
        return f"{{{fields}}}"
    shown = getattr(hint, "__name__", str(hint))
    supertype = getattr(hint, "__supertype__", None)
    return type_text(supertype) if supertype is not None else _NAMES.get(shown, shown)


def tags(hint: object) -> tuple[str, tuple[str, ...]] | None:
    """The key that tells the tables of a union apart, and what it may be; None for any other type."""
    configs = [
        option.__struct_config__
        for option in get_args(hint)
        if isinstance(option, type) and issubclass(option, msgspec.Struct)
    ]
    if len(configs) < 2 or any(config.tag is None for config in configs):
        return None
    return str(configs[0].tag_field), tuple(str(config.tag) for config in configs)


def _limits(meta: msgspec.Meta, parts: str) -> Iterator[str]:
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    for name, sign in signs:
        value = getattr(meta, name)
        if value is not None:
            yield f"{sign} {value}"
    if meta.min_length is not None:
        yield f"at least {meta.min_length} {parts}"
    if meta.max_length is not None:
        yield f"at most {meta.max_length}"


def kind_text(value: object) -> str:
    """What was given. Texts are not shown: one may be a secret."""
    match value:
        case bool() | int() | float():
            return toml_text(value)
        case str():
            return "text"
        case Mapping():
            return "a table"
        case list() | tuple():
            return "a list"
        case _:
            return type(value).__name__


def choices(hint: object) -> tuple[str, ...]:
    """The texts that a key allows; empty when it allows any."""
    if get_origin(hint) is Literal:
        return tuple(str(argument) for argument in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return tuple(choice for argument in get_args(hint) for choice in choices(argument))
    return ()


def toml_text(value: object) -> str:
    """A value as the file would write it; unset values have no TOML form and are shown as a dash."""
    match value:
        case None:
            return "–"
        case bool():
            return "true" if value else "false"
        case str():
            return msgspec.json.encode(value).decode()
        case msgspec.Struct():
            config = value.__struct_config__
            kind = {} if config.tag is None else {str(config.tag_field): config.tag}
            shown = kind | {name: getattr(value, name) for name in value.__struct_fields__}
            return toml_text({name: item for name, item in shown.items() if item is not None})
        case Mapping():
            return "{" + ", ".join(f"{name} = {toml_text(item)}" for name, item in value.items()) + "}"
        case tuple() | list():
            return "[" + ", ".join(toml_text(item) for item in value) + "]"
        case _:
            return str(value)
