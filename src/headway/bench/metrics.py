"""Numbers of a run by dotted name, as `summary.json` spells them, and conditions on them."""

import difflib
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.bench.config_diff import flat
from headway.bench.run_summary import RunSummary
from headway.core.errors import ConfigError
from headway.sim.scenario import Scenario
from headway.workload.spec import names

_CONDITION: Final = re.compile(r"^\s*([\w.\-]+)\s*(<=|>=|<|>)\s*([-+0-9.eE]+)\s*$")
# A last part of a name that says that less is better.
_LESS: Final = ("_ms", "errors", "unfinished", "refused", "preemptions", "cost_usd", "device_hours")


class Condition(msgspec.Struct, frozen=True):
    """A metric and the limit that it must keep."""

    metric: str
    sign: Literal["<=", ">=", "<", ">"]
    limit: float

    def holds(self, value: float | None) -> bool:
        """True when a value keeps the limit; one that was not measured keeps none."""
        if value is None:
            return False
        match self.sign:
            case "<=":
                return value <= self.limit
            case ">=":
                return value >= self.limit
            case "<":
                return value < self.limit
            case ">":
                return value > self.limit

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.limit:g}"


def condition(text: str) -> Condition:
    """Read `attainment>=0.9`. Raises ConfigError."""
    found = _CONDITION.match(text)
    try:
        if found is not None:
            return msgspec.convert({"metric": found[1], "sign": found[2], "limit": float(found[3])}, Condition)
    except ValueError:  # the limit is no number
        pass
    raise ConfigError(f"{text!r} is no condition; write a metric and its limit, for example attainment>=0.9")


def numbers(summary: RunSummary) -> Iterator[tuple[str, float | None]]:
    """Yield every number of a summary with its dotted name; None: not measured."""
    tree = msgspec.to_builtins(summary)
    for name, value in flat(tree):
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield name, value


def metric(summary: RunSummary, name: str) -> float | None:
    """Return a number of a summary; None: not measured. Raises ConfigError for a name that no number has."""
    value: object = msgspec.to_builtins(summary)
    for part in name.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif value is None:  # a group that this run has not got
            return None
        else:
            raise _unknown(summary, name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise _unknown(summary, name)


def check_metric(scenario: Scenario, name: str) -> None:
    """Raise ConfigError for a name that no run of a scenario can have a number of: before the first run, not after the
    last. What a run only finds out (kinds of decisions, counters, tenants of a recording) is let pass.
    """
    hint: object = RunSummary
    groups = {"workloads": names(scenario.workload), **dict.fromkeys(("pools", "pool_use"), _pools(scenario))}
    parts = name.split(".")
    for place, part in enumerate(parts):
        options = [each for each in get_args(hint) if each is not type(None)] if _is_optional(hint) else []
        hint = options[0] if len(options) == 1 else hint
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and part in hint.__struct_fields__:
            hint = get_type_hints(hint)[part]
        elif get_origin(hint) is dict:
            known = groups.get(parts[place - 1]) if place == 1 else None
            if known is not None and part not in known:
                near = difflib.get_close_matches(part, known, n=1)
                shown = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
                raise ConfigError(f"a run has no number {name!r}: {parts[0]} has no {part!r}; {shown}")
            hint = get_args(hint)[1]
        else:
            raise _nothing(name)
    kinds = set(get_args(hint)) if _is_optional(hint) else {hint}
    if not kinds <= {int, float, type(None)}:
        raise _nothing(name, isinstance(hint, type) and issubclass(hint, msgspec.Struct))


def _is_optional(hint: object) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _pools(scenario: Scenario) -> list[str]:
    return [pool.name for pool in scenario.pools]


def _nothing(name: str, is_group: bool = False) -> ConfigError:
    known = list(_static(RunSummary, ""))
    near = [one for one in known if one.startswith(f"{name}.")][:3] if is_group else []
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return ConfigError(f"a run has no number {name!r}; did you mean {' or '.join(near) or 'attainment'}?")


def _static(section: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Names of numbers that every run has."""
    for field, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _static(hint, f"{path}{field}.")
        elif (set(get_args(hint)) if _is_optional(hint) else {hint}) <= {int, float, type(None)}:
            yield path + field


def _unknown(summary: RunSummary, name: str) -> ConfigError:
    known = [each for each, _ in numbers(summary)]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return ConfigError(f"a run has no number {name!r}; did you mean {' or '.join(near) or 'attainment'}?")


def is_less_better(name: str) -> bool:
    """True for times, failures and costs."""
    return any(part.endswith(_LESS) for part in name.split("."))
