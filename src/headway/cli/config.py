"""`headway config`: check a configuration file, show what would run, print the reference."""

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.core.errors import ConfigError

if TYPE_CHECKING:  # the configuration knows the gateway and the scheduler; --help needs neither
    from headway.live.config import Resolved

app = typer.Typer(
    help="Check a configuration, show it with the origin of each value, or hash an API key for it.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

File = Annotated[Path | None, typer.Argument(help="TOML file; without it $HEADWAY_CONFIG, else the defaults alone.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated.")]


def _resolved(file: Path | None, assignments: list[str]) -> "Resolved":
    from headway.live.config import Host, layers, resolve, set_layer

    given = layers(file, os.environ, [set_layer(assignment) for assignment in assignments])
    return resolve(given, Host.here())


@app.command()
def validate(file: File = None, assignments: Set = []) -> None:  # noqa: B006  typer copies it
    """Check a configuration; silent details, one line of result, exit code 2 when it cannot work."""
    try:
        resolved = _resolved(file, assignments)
    except ConfigError as error:
        typer.echo(f"invalid: {error}", err=True)
        typer.echo("Some checks need values that are right, so more may be found once these are.", err=True)
        raise typer.Exit(2) from None
    given = sum(sourced.origin != "default" for sourced in resolved.sources)
    typer.echo(f"valid: {given} value(s) given, {len(resolved.sources) - given} default(s)")


@app.command()
def show(file: File = None, assignments: Set = []) -> None:  # noqa: B006  typer copies it
    """Show every value with its origin, then what Headway adjusted and why."""
    from headway.live.config import SECRETS
    from headway.live.config_words import toml_text

    resolved = _resolved(file, assignments)
    shown = [
        (s.key, "(not shown)" if s.key in SECRETS and s.value else toml_text(s.value), s.origin)
        for s in resolved.sources
    ]
    width, value_width = max(len(key) for key, _, _ in shown), max(len(value) for _, value, _ in shown)
    for key, value, origin in shown:
        typer.echo(f"{key:<{width}}  {value:<{min(value_width, 40)}}  {origin}")
    typer.echo("\nadjustments:" if resolved.adjustments else "\nno adjustments")
    for adjustment in resolved.adjustments:
        typer.echo(f"  {adjustment.key} = {toml_text(adjustment.value)}  ({adjustment.reason})")


@app.command("hash-key")
def hash_key() -> None:
    """Read an API key from a prompt or a pipe, never from the command line; print the digest for `auth.keys`."""
    if sys.stdin.isatty():
        key = typer.prompt("API key", hide_input=True, confirmation_prompt=True, err=True)
    else:
        key = sys.stdin.read()
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("an API key is one or more printable ASCII characters without spaces: it travels in a header")
    typer.echo(f'hash = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"')


@app.command("reference")
def print_reference() -> None:
    """Print the reference of every key (docs/configuration.md)."""
    from headway.live.config import Config
    from headway.live.config_reference import REFERENCE_HEAD, reference

    typer.echo(reference(Config, REFERENCE_HEAD), nl=False)
