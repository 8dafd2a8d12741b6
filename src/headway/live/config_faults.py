"""Finds what is wrong in values from a configuration file, and says it by key, in TOML's words."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.core.errors import ConfigError
from headway.live.config_words import choices, join, kind_text, tags, toml_text, type_text
from headway.sched.registry import PolicyChoice

Child: TypeAlias = tuple[str, object, object]  # key, type, value
NOT_FINITE: Final = "not finite"
_MISSING: Final = re.compile(r"missing required field `(\w+)`")


class Fault(msgspec.Struct, frozen=True):
    """What is wrong, at which key."""

    key: str
    text: str


def section_type(hint: object) -> type[msgspec.Struct] | None:
    """The struct that a field holds (also an optional one), or None for a plain value or a tagged union."""
    options = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    structs = [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]
    rest = [option for option in options if option not in structs and option is not type(None)]
    return structs[0] if len(structs) == 1 and not rest else None


def chosen_kind(hint: object, value: object) -> object:
    """Of a union of tables that are told apart by a key: the one that a value names; of a list or something else: the
    list, for a value that is one; else the union."""
    options = [option for option in get_args(hint) if isinstance(option, type) and issubclass(option, msgspec.Struct)]
    if get_origin(hint) in (Union, UnionType) and isinstance(value, Mapping):
        for option in options:
            tag = option.__struct_config__.tag
            if tag is not None and value.get(str(option.__struct_config__.tag_field)) == tag:
                return option
    lists = [option for option in get_args(hint) if get_origin(option) in (tuple, list)]
    if get_origin(hint) in (Union, UnionType) and isinstance(value, list) and len(lists) == 1:
        return lists[0]
    return hint


def children(hint: object, value: object, key: str) -> Iterator[Child]:
    """What stands inside a table or a list, as far as it is known what belongs there."""
    hint = chosen_kind(hint, value)
    section, arguments = section_type(hint), get_args(hint)
    if section is not None and isinstance(value, Mapping):
        hints = get_type_hints(section, include_extras=True)
        yield from ((join(key, name), hints[name], inner) for name, inner in value.items() if name in hints)
    elif get_origin(hint) is dict and isinstance(value, Mapping):
        yield from ((join(key, name), arguments[1], inner) for name, inner in value.items())
    elif get_origin(hint) in (tuple, list) and isinstance(value, list):
        yield from ((f"{key}[{number}]", arguments[0], inner) for number, inner in enumerate(value))


def unknown_keys(hint: object, value: object, key: str = "") -> Iterator[Fault]:
    """The keys that the tree does not have, each with the nearest one that it has."""
    hint = chosen_kind(hint, value)
    section = section_type(hint)
    if section is not None and isinstance(value, Mapping):
        known = section.__struct_fields__
        for name in value:
            if name not in known and name != section.__struct_config__.tag_field:
                yield Fault(key, f"unknown key `{join(key, name)}`{_hint(section, key, name, value[name])}")
    for inner_key, inner_hint, inner in children(hint, value, key):
        yield from unknown_keys(inner_hint, inner, inner_key)


def known_part(hint: object, value: object) -> object:
    """The value without the keys that the tree does not have."""
    hint = chosen_kind(hint, value)
    section = section_type(hint)
    inside = {key: known_part(kind, inner) for key, kind, inner in children(hint, value, "")}
    if isinstance(value, Mapping):
        kept = ((name, inside.get(join("", name), inner)) for name, inner in value.items())
        if section is None:
            return dict(kept)
        known = (*section.__struct_fields__, section.__struct_config__.tag_field)
        return {name: inner for name, inner in kept if name in known}
    return list(inside.values()) if isinstance(value, list) and inside else value


def _hint(section: type[msgspec.Struct], key: str, name: str, value: object) -> str:
    known = section.__struct_fields__
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean `{join(key, near[0])}`?"
    if section is PolicyChoice:
        shown = f"params = {{ {name} = {toml_text(value)} }}"
        return f"; parameters of a policy belong into params: `{key.rpartition('.')[2]} = {{ type = ..., {shown} }}`"
    return f"; known here: {', '.join(sorted(known))}"


def wrong_values(hint: object, value: object, key: str = "") -> list[Fault]:
    """The values of a wrong type or out of their bounds, and the tables of right values that do not fit together."""
    reason = _reason(hint, value)
    if reason is None:
        return []
    inside = [wrong_values(inner_hint, inner, inner_key) for inner_key, inner_hint, inner in children(hint, value, key)]
    return [fault for faults in inside for fault in faults] or [Fault(key, _text(hint, value, key, reason))]


def _reason(hint: object, value: object) -> str | None:
    try:
        msgspec.convert(value, hint)
    except (msgspec.ValidationError, ConfigError) as error:
        return str(error)
    if any(not math.isfinite(number) for number in _numbers(value)):
        return NOT_FINITE
    return None


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)


def _text(hint: object, value: object, key: str, reason: str) -> str:
    hint = chosen_kind(hint, value)
    section, allowed, kinds = section_type(hint), choices(hint), tags(hint)
    if kinds is not None:
        given = value.get(kinds[0]) if isinstance(value, Mapping) else None
        near = difflib.get_close_matches(given, kinds[1], n=1) if isinstance(given, str) else []
        known = ", ".join(toml_text(kind) for kind in kinds[1])
        return f"expected a table whose `{kinds[0]}` is one of {known}" + (
            f"; did you mean {toml_text(near[0])}?" if near else ""
        )
    if section is PolicyChoice and isinstance(value, str):
        name = key.rpartition(".")[2]
        return f"expected a table, got text; write `{name} = {{ type = {toml_text(value)} }}`"
    if section is not None and not isinstance(value, Mapping):
        return f"expected a table with {', '.join(section.__struct_fields__)}, got {kind_text(value)}"
    missing = _MISSING.search(reason)
    if missing is not None:
        example = f"; write `{key.rpartition('.')[2]} = {{ type = ..., params = {{ ... }} }}`"
        return f"`{missing[1]}` is missing" + (example if section is PolicyChoice else "")
    if section is not None:
        return reason
    if allowed and isinstance(value, str):
        near = difflib.get_close_matches(value, allowed, n=1)
        known = ", ".join(toml_text(choice) for choice in allowed)
        return f"{toml_text(value)} is not one of {known}" + (f"; did you mean {toml_text(near[0])}?" if near else "")
    if reason == NOT_FINITE:
        return f"holds a number that is {NOT_FINITE}"
    return f"expected {type_text(hint).replace('`', '')}, got {kind_text(value)}"
