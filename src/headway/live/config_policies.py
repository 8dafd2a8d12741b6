"""Where the configuration names policies, and whether what it says of them is true."""

from collections.abc import Mapping
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.live.config_faults import known_part, unknown_keys, wrong_values
from headway.live.config_findings import Findings
from headway.live.config_layers import Faults
from headway.live.config_words import join
from headway.sched.config import FrontConfig
from headway.sched.llm.params import CHUNKS, ORDERS
from headway.sched.policies import ADMISSIONS, PACES, ROUTERS
from headway.sched.registry import PolicyChoice, discover, unknown_policy

POLICIES: Final[Mapping[str, str]] = {
    "scheduler.order": ORDERS,
    "scheduler.chunk": CHUNKS,
    "executor.pace": PACES,
    "front.router": ROUTERS,
    "front.admission": ADMISSIONS,
}


def choice_at(tree: msgspec.Struct, key: str) -> PolicyChoice:
    """The policy that is chosen at `key`."""
    found: object = tree
    for part in key.split("."):
        found = getattr(found, part)
    if not isinstance(found, PolicyChoice):
        raise TypeError(f"{key} names no policy")
    return found


def check_policies(tree: msgspec.Struct) -> bool:
    """Raise ConfigError for policies that are not there, and for parameters that they do not take; else True."""
    found = Findings()
    for key, package in POLICIES.items():
        found.of(_check_policy, key, choice_at(tree, key), package)
    found.end()
    return True


def check_routes(front: FrontConfig) -> None:
    """The same for the policies that a model has of its own."""
    found = Findings()
    for model, route in front.routes.items():
        for name, choice, package in (("router", route.router, ROUTERS), ("admission", route.admission, ADMISSIONS)):
            if choice is not None:
                found.of(_check_policy, f"{join('front.routes', model)}.{name}", choice, package)
    found.end()


def _check_policy(key: str, choice: PolicyChoice, package: str) -> None:
    found = discover(package)
    if choice.type not in found:
        raise ConfigError(f"{key}.type is {unknown_policy(choice.type, tuple(found))}")
    params, inside = found[choice.type].Params, f"{key}.params"
    texts = [f"{fault.text} (of {choice.type!r})" for fault in unknown_keys(params, choice.params, inside)]
    wrong = wrong_values(params, known_part(params, choice.params), inside)
    texts += [f"key `{fault.key}` of {choice.type!r}: {fault.text}" for fault in wrong]
    if texts:
        raise Faults(tuple(texts))
