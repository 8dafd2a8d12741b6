"""Finds a catalogue entry by name, and reads one of a user's file; both refuse with what would have worked."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from headway.core.errors import ConfigError

T = TypeVar("T")


def entry_named(kind: str, name: str, known: Mapping[str, T], extra: Mapping[str, T]) -> T:
    """Return the entry of that name; case does not matter, and a user's `extra` wins. Raises ConfigError."""
    for table in (extra, known):
        if name in table:
            return table[name]
    folded = {key.lower(): key for table in (known, extra) for key in table}
    if (key := folded.get(name.lower())) is not None:
        return extra[key] if key in extra else known[key]
    near = [key for key in sorted(folded) if key.startswith(name.lower())]
    near = near or get_close_matches(name.lower(), list(folded), n=1)
    hint = f"did you mean {folded[near[0]]!r}?" if near else f"known are {', '.join(sorted(folded.values()))}."
    raise ConfigError(f"{kind} {name!r} is in no catalogue; {hint} A user file can add it")


def entry_of(kind: str, mapping: Mapping[str, object], shape: type[T]) -> T:
    """Read a user's entry. Raises ConfigError that names the key and the value that do not fit."""
    try:
        return msgspec.convert(dict(mapping), shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{kind} {mapping.get('name', '(no name)')!r} cannot be read: {error}") from error
