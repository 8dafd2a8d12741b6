"""Builds a strict struct tree out of layers (file, environment, flags) and knows where each value came from."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from headway.core.errors import ConfigError
from headway.live.config_faults import children, chosen_kind, known_part, section_type, unknown_keys, wrong_values
from headway.live.config_words import join
from headway.sched.registry import PolicyChoice

Tree: TypeAlias = Mapping[str, object]
_PARTS: Final = re.compile(r'"([^"]*)"|([^."]+)')
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


class Faults(ConfigError):
    """One or more errors of a configuration, in the order in which they were found."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        several = "\n".join((f"{len(texts)} errors", *(f"  {text}" for text in texts)))
        super().__init__(several if len(texts) > 1 else texts[0])
        self.texts = texts


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
    texts: list[str] = []
    for name in sorted(environment):
        if not name.startswith(prefix + "__"):
            continue
        key = name[len(prefix) + 2 :].lower().replace("__", ".")
        if key not in secrets:
            allowed = ", ".join(secrets)
            texts.append(
                f"environment variable {name}: the environment holds secrets only ({allowed}); "
                f"set `{key}` in the file or by a flag"
            )
        layers.append(Layer(f"environment {name}", nested(key, environment[name])))
    if texts:
        raise Faults(tuple(texts))
    return layers


def nested(key: str, value: object) -> dict[str, object]:
    """`a.b`, v -> {a: {b: v}}; a part with a dot in it is quoted, as in TOML."""
    for part in reversed([quoted or bare for quoted, bare in _PARTS.findall(key)]):
        value = {part: value}
    return value if isinstance(value, dict) else {}


def build(tree_type: type[S], layers: Sequence[Layer]) -> tuple[S, list[Sourced]]:
    """Merge the layers into a `tree_type`; return it with every value and its origin. Raises ConfigError
    with all that is no key, or no value of its key.
    """
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    texts: list[str] = []
    for layer in layers:
        texts += [f"{layer.origin}: {fault.text}" for fault in unknown_keys(tree_type, layer.values)]
        known = known_part(tree_type, layer.values)
        assert isinstance(known, dict)  # as the values are
        _merge(tree_type, merged, known, "", layer.origin, origins)
    _put_types(tree_type, merged)
    for fault in wrong_values(tree_type, merged):
        if not fault.key:  # the sections do not fit each other; the text says which
            texts.append(": ".join([*dict.fromkeys(layer.origin for layer in layers if layer.values), fault.text]))
            continue
        origin = _origin(fault.key, origins)
        texts.append((f"{origin}: " if origin else "") + f"key `{fault.key}`: {fault.text}")
    if texts:
        raise Faults(tuple(texts))
    built = msgspec.convert(merged, tree_type)
    return built, [Sourced(key, value, _origin(key, origins) or "default") for key, value in leaves(built)]


def _put_types(hint: object, tree: object) -> None:
    """Parameters of a policy that nobody names are those of the default one; `select` refuses what it has not."""
    hint = chosen_kind(hint, tree)
    section = section_type(hint)
    fields = () if section is None else msgspec.structs.fields(section)
    defaults = {field.name: field.default for field in fields if isinstance(field.default, PolicyChoice)}
    for key, inner_hint, inner in children(hint, tree, ""):
        default = defaults.get(key)
        if default is not None and isinstance(inner, dict) and "type" not in inner:
            inner["type"] = default.type
            params = inner.get("params", {})
            inner["params"] = {**default.params, **params} if isinstance(params, Mapping) else params
        _put_types(inner_hint, inner)


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Where the value came from; of a table or list: where its parts came from; of a part: where the whole did."""
    found = [origin for name, origin in origins.items() if name == key or name.startswith((f"{key}.", f"{key}["))]
    if not found:
        found = [origin for name, origin in origins.items() if key.startswith((f"{name}.", f"{name}["))]
    return ", ".join(dict.fromkeys(found))


def leaves(tree: msgspec.Struct, path: str = "") -> Iterator[tuple[str, object]]:
    """Key path and value of everything in the tree that is not itself a section."""
    for field in tree.__struct_fields__:
        value = getattr(tree, field)
        key = path + field
        if isinstance(value, msgspec.Struct) and section_type(type(value)) is not None:
            yield from leaves(value, key + ".")
        else:
            yield key, value


def _merge(
    hint: object, into: dict[str, object], values: Tree, path: str, origin: str, origins: dict[str, str]
) -> None:
    section = section_type(hint)
    hints = get_type_hints(section) if section is not None else {}
    for name, value in values.items():
        key = join(path, name)
        inner_hint = hints[name] if section is not None else get_args(hint)[1]
        tables = section_type(inner_hint) is not None or (
            get_origin(inner_hint) is dict and section_type(get_args(inner_hint)[1]) is not None
        )
        if tables and isinstance(value, Mapping):
            inner = into.get(name)
            inner = inner if isinstance(inner, dict) else {}
            into[name] = inner
            _merge(inner_hint, inner, value, key, origin, origins)
        else:
            into[name] = value
            origins[key] = origin
