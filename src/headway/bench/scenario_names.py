"""Checks that what a scenario says of tenants and models is of some that are there: a misspelt one would do nothing."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headway.core.errors import ConfigError
from headway.live.config_layers import Tree
from headway.sim.scenario import Scenario
from headway.workload.spec import Common, Replay

SHOWN_MAX: Final = 8  # names in a message


def check_names(scenario: Scenario, said: Sequence[Tree]) -> None:
    """Raise ConfigError for a table of a tenant that sends nothing, or of a model that no pool serves.

    `said`: what a scenario file and the command line say. A configuration of `headway serve` has the tenants and models
    of its server, and a simulation takes of them what it has.
    """
    for key in ("tenants", "front.quotas"):
        named = list(_named(key, said))
        sending = tenants_of(scenario.workload) if named else None
        if sending is not None:
            _check(key, named, sending, "is a tenant that no [[workload]] sends as; set the `tenant` of one")
    models = dict.fromkeys(pool.model for pool in scenario.pools)
    _check("front.routes", list(_named("front.routes", said)), tuple(models), "is a model that no pool serves")


def tenants_of(workload: Sequence[Common]) -> tuple[str, ...] | None:
    """Return who sends; None: a recording says it."""
    found: dict[str, None] = {}
    for spec in workload:
        if isinstance(spec, Replay) and spec.tenant == "default":
            return None
        one = spec.tenants == 1
        found.update(dict.fromkeys([spec.tenant] if one else [f"{spec.tenant}-{i}" for i in range(spec.tenants)]))
    return tuple(found)


def _check(key: str, named: Sequence[str], known: Sequence[str], what: str) -> None:
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            shown = ", ".join(known[:SHOWN_MAX]) + (", ..." if len(known) > SHOWN_MAX else "")
            raise ConfigError(f"key `{key}.{name}`: {name!r} {what}{hint}; known here: {shown}")


def _named(key: str, said: Sequence[Tree]) -> Iterator[str]:
    for tree in said:
        value: object = tree
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            yield from (str(name) for name in value)
