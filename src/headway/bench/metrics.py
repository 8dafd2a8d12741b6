"""Numbers of a run by dotted name, as `summary.json` spells them, and conditions on them."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from headway.bench.config_diff import flat
from headway.bench.run_summary import RunSummary
from headway.core.errors import ConfigError

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


def _unknown(summary: RunSummary, name: str) -> ConfigError:
    known = [each for each, _ in numbers(summary)]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return ConfigError(f"a run has no number {name!r}; did you mean {' or '.join(near) or 'attainment'}?")


def is_less_better(name: str) -> bool:
    """True for times, failures and costs."""
    return any(part.endswith(_LESS) for part in name.split("."))
