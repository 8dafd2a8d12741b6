"""The configuration of a run on its page: which policies decide, what differs from the defaults, and all of it."""

import json
from collections.abc import Mapping
from html import escape

import msgspec

from headway.bench.config_diff import UNSET, flat
from headway.bench.run_view import RunView
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario


def changed(tree: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return value and default of every key of a scenario that is not its default, by dotted name.

    Pools are held against a pool that says nothing; of workloads every key is told, there is no default one.
    """
    default, pool = (  # as they stand in scenario.json
        msgspec.json.decode(msgspec.json.encode(value), type=dict[str, object]) for value in (Scenario(), PoolParams())
    )
    plain = {name: value for name, value in tree.items() if name not in ("pools", "workload")}
    found = _differing("", plain, {name: default.get(name) for name in plain})
    for kind, base in (("pools", pool), ("workload", dict[str, object]())):
        entries = tree.get(kind, ())
        for place, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            name = entry.get("name") or place if isinstance(entry, Mapping) else place
            found |= _differing(f"{kind}.{name}", entry, base)
    return found


def _differing(path: str, tree: object, base: object) -> dict[str, tuple[object, object]]:
    defaults = dict(flat(base, path))
    return {
        name: (value, defaults.get(name, UNSET))
        for name, value in flat(tree, path)
        if name not in defaults or defaults[name] != value
    }


def configuration(view: RunView) -> str:
    """Return the tables."""
    policies = "".join(
        f"<tr><td>{escape(key)}</td><td class=text>{escape(name)}</td></tr>"
        for key, name in view.summary.policies.items()
    )
    keys = "".join(
        f"<tr><td>{escape(key)}</td>{''.join(f'<td class=text>{escape(str(shown))}</td>' for shown in values)}</tr>"
        for key, values in changed(view.scenario).items()
        if not key.endswith(".name")
    )
    parts = []
    if policies:
        parts.append(f"<table><tr><th>decides</th><th class=text>policy</th></tr>{policies}</table>")
    if keys:
        head = "<tr><th>key</th><th class=text>value</th><th class=text>default</th></tr>"
        parts.append(f"<table>{head}{keys}</table>")
    text = escape(json.dumps(view.scenario, indent=2))
    return "".join(parts) + f"<details><summary>scenario.json, as it was run</summary><pre>{text}</pre></details>"
