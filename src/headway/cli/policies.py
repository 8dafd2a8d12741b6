"""`headway policies`: every policy that can be named in the configuration, and what an operator should know of it."""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import headway.sched
from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from headway.sched.registry import PolicyClass

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class PolicyCard(msgspec.Struct, frozen=True):
    """One policy as it is shown. `kind` is the configuration key (`scheduler.order`), `params` name -> default."""

    kind: str
    name: str
    sees: str
    good_at: str
    blind_spot: str
    needs: tuple[str, ...]
    params: dict[str, str]


def kinds() -> dict[str, str]:
    """Return kind -> package of every `policies` package that holds policies, by name.

    The kind is the key that chooses the policy in a configuration file.
    """
    from headway.live.config_policies import POLICIES

    keys = {package: key for key, package in POLICIES.items()}
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(headway.sched.__path__, "headway.sched."):
        parts = module.name.split(".")[2:]
        if not module.ispkg or "policies" not in parts:
            continue
        inside = pkgutil.iter_modules(importlib.import_module(module.name).__path__)
        if any(not each.ispkg and not each.name.startswith("_") for each in inside):
            slice_name = ".".join(part for part in parts if part != "policies")
            found[keys.get(module.name, slice_name)] = module.name
    return dict(sorted(found.items()))


def cards(kind: str, package: str) -> list[PolicyCard]:
    """Return the cards of one kind, by name."""
    from headway.sched.registry import discover

    return [_card(kind, name, policy) for name, policy in discover(package).items()]


def _card(kind: str, name: str, policy: type["PolicyClass"]) -> PolicyCard:
    fields = msgspec.structs.fields(policy.Params)
    params = {field.encode_name: "required" if field.required else repr(field.default) for field in fields}
    needs = tuple(sorted(policy.needs))
    return PolicyCard(kind, name, policy.sees, policy.good_at, policy.blind_spot, needs, params)


def _is_meant(kind: str, asked: str) -> bool:
    return kind == asked or asked in kind.split(".")


def describe(card: PolicyCard) -> str:
    """Return the lines that are printed of one policy."""
    rows = [("sees", card.sees), ("good at", card.good_at), ("blind spot", card.blind_spot)]
    if card.needs:
        rows.append(("needs", ", ".join(card.needs)))
    if card.params:
        rows.append(("params", ", ".join(f"{name} = {value}" for name, value in card.params.items())))
    return "\n".join([f"  {card.name}", *(f"    {title:<11}{text}" for title, text in rows)])


@app.command()
def policies(
    kind: Annotated[str | None, typer.Argument(help="Only these: `scheduler.order`, `order`, or `scheduler`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every policy: what it sees, what it is good at, its blind spot."""
    known = kinds()
    chosen = {name: package for name, package in known.items() if kind is None or _is_meant(name, kind)}
    if not chosen:
        raise ConfigError(f"no policies of kind `{kind}`; known are {', '.join(known)}")
    shown = {name: cards(name, package) for name, package in chosen.items()}
    if as_json:
        print(msgspec.json.encode([card for group in shown.values() for card in group]).decode())
        return
    for name, group in shown.items():
        print(name)
        for card in group:
            print(describe(card))
        print()
