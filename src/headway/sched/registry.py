"""Finds policies: one file of a slice's `policies` package is one public class named after the file stem.

A policy declares a strict `Params` struct (nested), the set `needs` that its machine must provide, and what an operator
reads in `headway policies`: `sees`, `good_at`, `blind_spot`.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

import msgspec

from headway.core.errors import ConfigError


class PolicyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy as the configuration names it."""

    type: str  # name of the policy
    params: dict[str, object] = {}  # what it takes, see below; what is left out has the policy's default


class PolicyClass(Protocol):
    """What every policy class declares."""

    Params: ClassVar[type[msgspec.Struct]]
    needs: ClassVar[frozenset[str]]
    sees: ClassVar[str]
    good_at: ClassVar[str]
    blind_spot: ClassVar[str]


_DECLARED = ("Params", "needs", "sees", "good_at", "blind_spot")


def class_name(stem: str) -> str:
    """`least_slack` -> `LeastSlack`."""
    return "".join(part.capitalize() for part in stem.split("_"))


def discover(package: str) -> dict[str, type[PolicyClass]]:
    """Return every policy of `package` by file stem. Raises ConfigError naming the file that breaks the rule."""
    found: dict[str, type[PolicyClass]] = {}
    for info in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda i: i.name):
        if info.ispkg or info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        public = [
            value
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        ]
        if [cls.__name__ for cls in public] != [class_name(info.name)]:
            names = sorted(cls.__name__ for cls in public)
            raise ConfigError(
                f"policy file {module.__name__} must define one public class {class_name(info.name)}, has {names}"
            )
        missing = [name for name in _DECLARED if not hasattr(public[0], name)]
        if missing:
            raise ConfigError(f"policy {module.__name__} does not declare {', '.join(missing)}")
        found[info.name] = cast(type[PolicyClass], public[0])  # checked just above
    return found


def unknown_policy(name: str, known: Sequence[str]) -> str:
    """Say that no policy is called `name`, which one may be meant, and which there are."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name!r}; {f'did you mean {near[0]!r}? ' if near else ''}known are {', '.join(known)}"


def _owners(found: Mapping[str, type[PolicyClass]], choice: PolicyChoice) -> str:
    """Say which policy has the first parameter that the chosen one has not, or which one of its own may be meant."""
    own = found[choice.type].Params.__struct_fields__
    strange = next((name for name in choice.params if name not in own), None)
    if strange is None:
        return ""
    others = [name for name, cls in found.items() if strange in cls.Params.__struct_fields__]
    if others:
        return f"{strange!r} is a parameter of {', '.join(others)}: set the type first"
    near = difflib.get_close_matches(strange, own, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(own) or 'no parameters'}"


def select(
    package: str, key: str, choice: PolicyChoice, provides: Mapping[str, bool]
) -> tuple[Callable[..., Any], msgspec.Struct]:  # Any: what the slice's own protocol says
    """Return the chosen class and its parsed Params.

    `key` is the configuration key in messages; `provides` says for each thing a policy may need whether it is there,
    named by the configuration key that switches it. Raises ConfigError.
    """
    found = discover(package)
    cls = found.get(choice.type)
    if cls is None:
        raise ConfigError(f"{key}.type is {unknown_policy(choice.type, tuple(found))}")
    for need in sorted(cls.needs):
        if not provides.get(need, False):
            raise ConfigError(
                f"{key}.type = {choice.type!r} needs {need}, which is off or absent; set {need} or change {key}.type"
            )
    try:
        params = msgspec.convert(choice.params, cls.Params)
    except msgspec.ValidationError as error:
        owners = _owners(found, choice)
        raise ConfigError(f"{key}.params of {choice.type!r}: {error}{owners and f'; {owners}'}") from None
    return cast(Callable[..., Any], cls), params  # Any: the slice's own protocol; its law suite checks it
