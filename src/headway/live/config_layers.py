"""Builds a strict struct tree out of layers (file, environment, flags) and knows where each value came from."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.core.errors import ConfigError

Tree: TypeAlias = Mapping[str, object]
S = TypeVar("S", bound=msgspec.Struct)


class Layer(msgspec.Struct, frozen=True):
    """Values of one origin; a later layer wins."""

    origin: str
    values: Tree


class Sourced(msgspec.Struct, frozen=True):
    """One value of the tree with its origin."""

    key: str
    value: object
    origin: str


def file_layer(path: Path) -> Layer:
    """Read a TOML file. Raises ConfigError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return Layer(str(path), values)


def env_layers(environment: Mapping[str, str], prefix: str, secrets: Sequence[str]) -> list[Layer]:
    """`PREFIX__A__B=value` for the secret keys `a.b`. Raises ConfigError for any other key: it belongs in the file."""
    layers: list[Layer] = []
    for name in sorted(environment):
        if not name.startswith(prefix + "__"):
            continue
        key = name[len(prefix) + 2 :].lower().replace("__", ".")
        if key not in secrets:
            allowed = ", ".join(secrets)
            raise ConfigError(
                f"environment variable {name}: the environment holds secrets only ({allowed}); "
                f"set `{key}` in the file or by a flag"
            )
        layers.append(Layer(f"environment {name}", nested(key, environment[name])))
    return layers


def nested(key: str, value: object) -> dict[str, object]:
    """`a.b`, v -> {a: {b: v}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value if isinstance(value, dict) else {}


def build(tree_type: type[S], layers: Sequence[Layer]) -> tuple[S, list[Sourced]]:
    """Merge the layers into a `tree_type`; return it with every value and its origin. Raises ConfigError."""
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        _check_names(tree_type, layer.values, "", layer.origin)
        _merge(tree_type, merged, layer, layer.values, "", origins)
    try:
        built = msgspec.convert(merged, tree_type)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), origins)) from error
    return built, [Sourced(key, value, origins.get(key, "default")) for key, value in leaves(built)]


def leaves(tree: msgspec.Struct, path: str = "") -> Iterator[tuple[str, object]]:
    """Key path and value of everything in the tree that is not itself a section."""
    for field in tree.__struct_fields__:
        value = getattr(tree, field)
        key = path + field
        if isinstance(value, msgspec.Struct) and section_type(type(value)) is not None:
            yield from leaves(value, key + ".")
        else:
            yield key, value


def section_type(hint: object) -> type[msgspec.Struct] | None:
    """The struct that a field holds (also an optional one), or None for a plain value or a tagged union."""
    options = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    structs = [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]
    rest = [option for option in options if option not in structs and option is not type(None)]
    return structs[0] if len(structs) == 1 and not rest else None


def _check_names(tree_type: type[msgspec.Struct], values: Tree, path: str, origin: str) -> None:
    hints = get_type_hints(tree_type)
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"; did you mean `{path}{near[0]}`?" if near else f"; known here: {', '.join(sorted(hints))}"
            raise ConfigError(f"{origin}: unknown key `{path}{name}`{hint}")
        section = section_type(hints[name])
        if section is not None and isinstance(value, Mapping):
            _check_names(section, value, f"{path}{name}.", origin)


def _merge(
    tree_type: type[msgspec.Struct],
    into: dict[str, object],
    layer: Layer,
    values: Tree,
    path: str,
    origins: dict[str, str],
) -> None:
    hints = get_type_hints(tree_type)
    for name, value in values.items():
        key = path + name
        section = section_type(hints[name])
        if section is not None and isinstance(value, Mapping):
            inner = into.get(name)
            inner = inner if isinstance(inner, dict) else {}
            into[name] = inner
            _merge(section, inner, layer, value, key + ".", origins)
        else:
            into[name] = value
            origins[key] = layer.origin


def _explain(message: str, origins: Mapping[str, str]) -> str:
    """`Expected int, got str - at $.server.port` -> names the key and where its value came from."""
    what, _, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".").replace("[...]", "")
    origin = origins.get(key)
    if origin is None:
        origin = next((found for name, found in origins.items() if name.startswith(key + ".")), None)
    place = f"{origin}: " if origin else ""
    what = what[0].lower() + what[1:]
    return f"{place}key `{key}`: {what}" if key else f"{place}{what}"
