"""Reads scenarios: a TOML file and changes by dotted name become a strict `Scenario`, or an error naming the key."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

import msgspec

from headway.bench.scenario_names import check_names
from headway.core.errors import ConfigError
from headway.live.config_layers import Layer, Tree, build, file_layer, nested
from headway.sim.pools import PoolParams
from headway.sim.replicas import PUBLISHED
from headway.sim.scenario import Scenario
from headway.workload.spec import WorkloadParams

REPLICAS: Final = 2  # one replica has nothing to route
LISTS: Final = ("pools", "workload")
DEFAULT: Final[Tree] = {"pools": [{"replicas": REPLICAS}], "workload": [{"kind": "synthetic"}]}
ARRIVALS: Final[Tree] = {"kind": "poisson"}  # of an entry of `workload` that says nothing of them
JSON: Final = ".json"
RUN: Final = "scenario.json"  # in the folder of a run
COSTS: Final = ("roofline", "measured", "linear")  # of a pool; every other, without published:, is a file
_FIRST: Final = re.compile(r"^(\w+)(?:\[([^\]]*)\])?\.(.+)$")


def read_scenario(path: Path | None, changes: Mapping[str, object], base: Layer | None = None) -> Scenario:
    """Return the scenario of a file (TOML, or the JSON of a run) with changes by dotted name. Raises ConfigError.

    `pools.replicas` changes every pool; `pools[1].replicas`, `pools[chat].replicas` or `pools.chat.replicas` one of
    them, by place or by name (in brackets where the name is that of a key).
    `base` is what every value begins with; one pool of it lies under every pool of the file.
    """
    given = Layer("default", {}) if path is None else _scenario_layer(path)
    bottom = base or Layer("default", {})
    tree: dict[str, object] = {**bottom.values, **given.values}
    for name in LISTS:
        tree[name] = _laid_over(_entries(given.values, name), _entries(bottom.values, name), _entries(DEFAULT, name))
    layers = [bottom, given]
    touched: dict[str, object] = {}
    for name, value in changes.items():
        found = _FIRST.match(name)
        if found is not None and found[1] in LISTS:
            tree[found[1]] = touched[found[1]] = _changed(tree[found[1]], found, value)
        else:
            layers.append(Layer("command line", nested(name, value)))
    origin = given.origin if path is not None else bottom.origin
    layers.insert(2, Layer(origin, {name: tree[name] for name in LISTS}))
    layers.append(Layer(f"{origin}, command line" if path is not None else "command line", touched))
    scenario, _ = build(Scenario, layers)
    check_names(scenario, [layer.values for layer in layers if layer is not bottom])
    return scenario


def _scenario_layer(path: Path) -> Layer:
    if path.is_dir():
        inside = [one for one in sorted(path.iterdir()) if one.name == RUN or one.suffix == ".toml"]
        raise ConfigError(
            f"{path} is a folder; name a file" + (f", such as {inside[0]}" if inside else ": it has none")
        )
    given = _json_layer(path) if path.suffix == JSON else file_layer(path)
    if not given.values:
        raise ConfigError(f"{path} says nothing; leave it out to run the defaults, or see: headway simulate --keys")
    unknown = [name for name in given.values if name not in Scenario.__struct_fields__]
    if unknown and (strange := _of_a_server(unknown)):
        raise ConfigError(
            f"{path}: [{strange[0]}] belongs to a configuration of `headway serve`; "
            f"try that one with: headway simulate --config {path}"
        )
    return given if path.suffix == JSON else Layer(given.origin, _rooted(given.values, path.parent))


def _json_layer(path: Path) -> Layer:
    """What a run has left as `scenario.json`: its paths begin where that run began."""
    try:
        return Layer(str(path), msgspec.json.decode(path.read_bytes(), type=dict[str, object]))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error


def _of_a_server(names: Sequence[str]) -> list[str]:
    """Those that a configuration of `headway serve` has. It is imported only here: it knows the gateway, which takes
    longer than a small simulation."""
    from headway.live.config import Config

    return [name for name in names if name in Config.__struct_fields__]


def _rooted(tree: Tree, folder: Path) -> Tree:
    """Paths in a scenario file begin in its folder: traces, cost files, configs of models."""
    out = dict(tree)
    for name, key in (("workload", "path"), ("pools", "cost")):
        entries = _entries(tree, name)
        if isinstance(entries, Sequence) and not isinstance(entries, str):
            out[name] = [_with_path(entry, key, folder) for entry in entries]
    plan = tree.get("plan")
    if isinstance(plan, Mapping) and isinstance(costs := plan.get("costs"), list | tuple):
        out["plan"] = {**plan, "costs": [_with_path(entry, "cost", folder) for entry in costs]}
    catalogue = tree.get("catalogue")
    configs = catalogue.get("hf_configs") if isinstance(catalogue, Mapping) else None
    if isinstance(catalogue, Mapping) and isinstance(configs, Mapping):
        placed = {name: str(folder / path) if isinstance(path, str) else path for name, path in configs.items()}
        out["catalogue"] = {**catalogue, "hf_configs": placed}
    return out


def _with_path(entry: object, key: str, folder: Path) -> object:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(value, str):
        return entry
    if value in COSTS or value.startswith(PUBLISHED):
        return entry
    return {**entry, key: str(folder / value)}


def _entries(tree: Tree, name: str) -> object:
    """The entries of a list; one table in place of it is a list of one."""
    value = tree.get(name)
    return [value] if isinstance(value, Mapping) else value


def _laid_over(given: object, bottom: object, default: object) -> object:
    if given is None:
        return default if bottom is None else bottom
    if bottom is None or not isinstance(given, Sequence) or not isinstance(bottom, Sequence):
        return given
    return [_merged(bottom[0], entry) for entry in given]


def _merged(under: object, over: object) -> object:
    if not isinstance(under, Mapping) or not isinstance(over, Mapping):
        return over
    return {**under, **{name: _merged(under.get(name), value) for name, value in over.items()}}


def _names(kind: str, entries: Sequence[object]) -> list[str]:
    """Names of the entries; a pool that says none has its default."""
    default = PoolParams().name if kind == "pools" else None
    found = [entry.get("name", default) if isinstance(entry, Mapping) else None for entry in entries]
    return [f"{name}" for name in found if name is not None]


def _changed(entries: object, found: re.Match[str], value: object) -> object:
    """Return the list with a key of one entry, or of all, changed."""
    kind, label, rest = found[1], found[2], found[3]
    if not isinstance(entries, Sequence):
        return entries  # not a list: `build` says so
    if label is None:
        label, rest = _named(kind, rest, entries)
    chosen = range(len(entries)) if label is None else [_place(kind, label, entries)]
    change = nested(rest, value)
    under: Tree = {"arrivals": ARRIVALS} if "arrivals" in change else {}
    return [_merged(_merged(under, entry), change) if place in chosen else entry for place, entry in enumerate(entries)]


def _named(kind: str, rest: str, entries: Sequence[object]) -> tuple[str | None, str]:
    """`chat.replicas` -> (chat, replicas), where chat is the name of an entry and of no key; else no entry is named."""
    first, _, key = rest.partition(".")
    keys = _keys(kind)
    if not key or first in keys:
        return None, rest
    names = _names(kind, entries)
    if first in names:
        return first, key
    near = difflib.get_close_matches(first, [*names, *keys], n=1)
    hint = f"; did you mean `{kind}.{near[0]}`?" if near else ""
    raise ConfigError(
        f"command line: key `{kind}.{rest}`: {first!r} is neither the name of an entry of `{kind}` "
        f"({', '.join(names) or 'none has one'}) nor a key of one{hint}"
    )


def _keys(kind: str) -> list[str]:
    types = (PoolParams,) if kind == "pools" else get_args(WorkloadParams)
    return [*dict.fromkeys(name for each in types for name in each.__struct_fields__), "kind"]


def _place(kind: str, label: str, entries: Sequence[object]) -> int:
    if label.isdigit() and int(label) < len(entries):
        return int(label)
    default = PoolParams().name if kind == "pools" else None
    places = [entry.get("name", default) if isinstance(entry, Mapping) else None for entry in entries]
    if label in places:
        return places.index(label)
    known = ", ".join(_names(kind, entries))
    raise ConfigError(
        f"{kind}[{label}]: there is no such entry; give its place, 0 to {len(entries) - 1}"
        + (f", or its name: {known}" if known else "")
    )
