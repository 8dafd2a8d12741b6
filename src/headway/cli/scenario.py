"""What `headway simulate` runs: a scenario out of defaults, a configuration of `headway serve`, a file and options."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.bench.summary import Targets
from headway.core.errors import ConfigError
from headway.live.config import Config
from headway.live.config_layers import Layer, Tree, build, file_layer, nested
from headway.live.config_reference import reference
from headway.sim.fleet import FleetParams
from headway.workload.requests import Workload

REPLICAS: Final = 2  # one replica has nothing to route

# Where a scenario keeps what the configuration calls otherwise.
_PLACES: Final[Mapping[str, str]] = {
    "scheduler": "fleet.llm",
    "front": "fleet.front",
    "cost": "fleet.belief",
    "executor": "fleet.worker",
    "fleet.migration": "fleet.migration",
    "model.replicas": "fleet.replicas",
    "engine.block_size": "fleet.engine.block_size",
    "engine.kv_blocks": "fleet.engine.kv_blocks",
    "engine.host_slots": "fleet.engine.host_slots",
    "engine.max_model_len": "fleet.engine.max_model_len",
}
_SYNTHETIC: Final = ("engine.kind", "engine.synthetic")

KEYS_HEAD: Final = f"""# Scenario keys

A scenario file of `headway simulate` is TOML with these tables; `--set fleet.llm.max_seqs=8` reaches every key.
`fleet.replicas` is {REPLICAS} unless something says otherwise. `--config FILE` takes these names of the configuration
of `headway serve` to the place beside them, and `--set` knows them too:

{chr(10).join(f"- `{name}` is `{place}`" for name, place in _PLACES.items())}
"""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is simulated."""

    fleet: FleetParams = FleetParams(replicas=REPLICAS)
    workload: Workload = Workload()
    targets: Targets = Targets()


class Served(msgspec.Struct, frozen=True):
    """What a configuration of `headway serve` says to a simulation, and what it says only to a server."""

    layer: Layer
    ignored: tuple[str, ...]  # sections in brackets, single keys without
    notes: tuple[str, ...]


def keys_text() -> str:
    """Return what `headway simulate --keys` prints."""
    return reference(Scenario, KEYS_HEAD)


def read_scenario(path: Path | None, changes: Mapping[str, object], served: Served | None = None) -> Scenario:
    """Return the scenario of a file with changes by dotted name. Raises ConfigError naming the key."""
    layers = [Layer("default", nested("fleet.replicas", REPLICAS)), *([served.layer] if served else [])]
    if path is not None:
        given = file_layer(path)
        strange = [
            name for name in given.values if name in Config.__struct_fields__ and name not in Scenario.__struct_fields__
        ]
        if strange:
            raise ConfigError(
                f"{path}: [{strange[0]}] belongs to a configuration of `headway serve`; "
                f"try that one with: headway simulate --config {path}"
            )
        layers.append(given)
    for name, value in changes.items():
        layers += [Layer("command line", nested(key, value)) for key in _scenario_keys(name)]
    scenario, _ = build(Scenario, layers)
    _refuse_empty(scenario)
    return scenario


def _scenario_keys(name: str) -> list[str]:
    """The scenario's keys for a dotted name of the configuration; any other name is one already."""
    if name == "scheduler.async_depth":
        return ["fleet.llm.async_depth", "fleet.worker.credits"]
    for known, place in _PLACES.items():
        if name == known or name.startswith(f"{known}."):
            return [place + name[len(known) :]]
    return [name]


def _refuse_empty(scenario: Scenario) -> None:
    least = (
        ("fleet.replicas", scenario.fleet.replicas, 1),
        ("workload.count", scenario.workload.count, 1),
        ("workload.tenants", scenario.workload.tenants, 1),
        ("workload.families", scenario.workload.families, 0),
        ("workload.shared_tokens", scenario.workload.shared_tokens, 0),
    )
    for key, value, smallest in least:
        if value < smallest:
            raise ConfigError(f"{key} = {value} is below {smallest}: there would be nothing to simulate")
    if not scenario.workload.rate_per_s > 0:
        raise ConfigError(f"workload.rate_per_s = {scenario.workload.rate_per_s} must be above 0")


def read_config(path: Path) -> Served:
    """Take from a configuration file what a simulation can use. Raises ConfigError as `headway serve` does."""
    given = file_layer(path)
    config, _ = build(Config, [given])
    used = [*_PLACES, *(_SYNTHETIC if config.engine.kind == "synthetic" else ())]
    tree = _moved(given.values, config)
    notes = []
    if config.engine.kv_blocks is None:
        blocks, size = FleetParams().engine.kv_blocks, config.engine.block_size
        notes.append(f"engine.kv_blocks is unset; fleet.engine.kv_blocks counts (default {blocks}, of {size} tokens)")
    if config.engine.kind == "synthetic":
        step = config.engine.synthetic
        truth = {"base_ns": step.step_us * 1000, "token_ns": step.token_us * 1000, "kv_ns": 0.0}
        _put(tree, "fleet.truth", truth)
    else:
        notes.append("what a step takes comes from fleet.truth, not from the model")
    return Served(Layer(str(path), tree), tuple(_ignored(given.values, used)), tuple(notes))


def _moved(values: Tree, config: Config) -> dict[str, object]:
    tree: dict[str, object] = {}
    for name, place in _PLACES.items():
        value = _get(values, name)
        if value is not None:
            _put(tree, place, value)
    # Defaults that differ between a server and a simulation.
    _put(tree, "fleet.replicas", config.model.replicas)
    _put(tree, "fleet.engine.block_size", config.engine.block_size)
    _put(tree, "fleet.worker.credits", config.scheduler.async_depth)
    return tree


def _get(tree: Tree, name: str) -> object:
    value: object = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(tree: dict[str, object], name: str, value: object) -> None:
    *path, last = name.split(".")
    for part in path:
        inner = tree.get(part)
        inner = dict(inner) if isinstance(inner, Mapping) else {}
        tree[part] = inner
        tree = inner
    tree[last] = value


def _ignored(values: Tree, used: Sequence[str], path: str = "") -> Iterator[str]:
    for part, value in values.items():
        name = f"{path}{part}"
        if name in used:
            continue
        if isinstance(value, Mapping) and any(key.startswith(f"{name}.") for key in used):
            yield from _ignored(value, used, f"{name}.")
        else:
            yield f"[{name}]" if isinstance(value, Mapping) else name


def parse_setting(text: str) -> tuple[str, object]:
    """`fleet.llm.max_seqs=8` -> its dotted name and TOML value; a bare word is a string. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text!r}: write name=value, for example fleet.llm.max_seqs=8")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
