"""What `headway simulate` runs: a scenario out of defaults, a configuration of `headway serve`, a file and options."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from headway.bench.scenarios import REPLICAS, read_scenario
from headway.core.errors import ConfigError
from headway.cost.models_catalogue import MODELS
from headway.live.config_layers import Layer, Tree, build, file_layer
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario

if TYPE_CHECKING:
    from headway.live.config import Config

# Where a scenario keeps what the configuration calls otherwise.
_PLACES: Final[Mapping[str, str]] = {
    "scheduler": "pools.scheduler",
    "front": "front",
    "cost": "pools.belief",
    "executor": "pools.worker",
    "fleet.migration": "migration",
    "fleet.shape_pools": "shape_pools",
    "model.replicas": "pools.replicas",
    "engine.block_size": "pools.engine.block_size",
    "engine.kv_blocks": "pools.engine.kv_blocks",
    "engine.host_slots": "pools.engine.host_slots",
    "engine.max_model_len": "pools.engine.max_model_len",
}
_SYNTHETIC: Final = ("engine.kind", "engine.synthetic")

KEYS_HEAD: Final = f"""# Scenario keys

A scenario file of `headway simulate` is TOML with these tables; `--set pools.scheduler.max_seqs=8` reaches every key:
of every pool, of the second with `pools[1].scheduler.max_seqs`, of the one called chat with `pools[chat]`. Without a
file there is one pool of {REPLICAS} replicas. `--config FILE` takes these names of the configuration of `headway serve`
to the place beside them, and `--set` knows them too:

{chr(10).join(f"- `{name}` is `{place}`" for name, place in _PLACES.items())}
"""


class Served(msgspec.Struct, frozen=True):
    """What a configuration of `headway serve` says to a simulation, and what it says only to a server."""

    layer: Layer
    ignored: tuple[str, ...]  # sections in brackets, single keys without
    notes: tuple[str, ...]


def keys_text() -> str:
    """Return what `headway simulate --keys` prints."""
    from headway.live.config_reference import reference

    return reference(Scenario, KEYS_HEAD)


def scenario_of(path: Path | None, changes: Mapping[str, object], served: Served | None = None) -> Scenario:
    """Return the scenario of a file with changes by dotted name, in the scenario's or the configuration's words."""
    named = {key: value for name, value in changes.items() for key in _scenario_keys(name)}
    return read_scenario(path, named, None if served is None else served.layer)


def _scenario_keys(name: str) -> list[str]:
    """The scenario's keys for a dotted name of the configuration; any other name is one already."""
    if name == "scheduler.async_depth":
        return ["pools.scheduler.async_depth", "pools.worker.credits"]
    for known, place in _PLACES.items():
        if name == known or name.startswith(f"{known}."):
            return [place + name[len(known) :]]
    return [name]


def read_config(path: Path) -> Served:
    """Take from a configuration file what a simulation can use. Raises ConfigError as `headway serve` does."""
    # The gateway's settings come with it, and take longer to import than a small simulation to run.
    from headway.live.assemble import SYNTHETIC_LENGTH
    from headway.live.config import Config

    given = file_layer(path)
    config, _ = build(Config, [given])
    used = [*_PLACES, "model.name", *(_SYNTHETIC if config.engine.kind == "synthetic" else ())]
    tree = _moved(given.values, config)
    notes = []
    if config.engine.kind == "synthetic":
        step = config.engine.synthetic
        linear = {"step_us": step.step_us, "token_us": step.token_us, "kv_ns": 0.0, "max_model_len": SYNTHETIC_LENGTH}
        _put(tree, "pools.cost", "linear")
        _put(tree, "pools.linear", linear)
        _put(tree, "pools.model", config.model.name)
    else:
        notes.append(_put_model(tree, config.model.name))
    pool = tree.pop("pools")
    return Served(Layer(str(path), {**tree, "pools": [pool]}), tuple(_ignored(given.values, used)), tuple(notes))


def _put_model(tree: dict[str, object], name: str) -> str:
    """Put the server's model where a simulation looks for it; return what a reader should know of its steps."""
    folder = Path(name)
    own = next((known.name for known in MODELS.values() if name in (known.source, known.source.rpartition("/")[2])), "")
    own = own or next((known for known in MODELS if known == name.lower()), "")
    if not own and (folder / "config.json").is_file():
        own = folder.name
        _put(tree, "catalogue.hf_configs", {own: str(folder / "config.json")})
    if own:
        _put(tree, "pools.model", own)
    device = PoolParams().hardware.device
    where = f"on {device}, or what pools.hardware says, not on this machine"
    if own:
        return f"steps take what {own} takes {where}"
    return f"{name} is in no catalogue: steps take what {PoolParams().model} takes {where}; set pools.model"


def _moved(values: Tree, config: "Config") -> dict[str, object]:
    tree: dict[str, object] = {}
    for name, place in _PLACES.items():
        value = _get(values, name)
        if value is not None:
            _put(tree, place, value)
    # Defaults that differ between a server and a simulation.
    _put(tree, "pools.replicas", config.model.replicas)
    _put(tree, "pools.engine.block_size", config.engine.block_size)
    _put(tree, "pools.worker.credits", config.scheduler.async_depth)
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
    """`pools.scheduler.max_seqs=8` -> its dotted name and TOML value; a bare word is a string. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text!r}: write name=value, for example pools.scheduler.max_seqs=8")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
