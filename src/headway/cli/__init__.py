"""Finds the command that was asked for and runs it; imports nothing else, so that `headway --help` stays quick.

A command is one module of this package that defines `app: typer.Typer`: a single command, or several sub-commands.
"""

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from headway import __version__

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "Serve models over an OpenAI-compatible API.",
    "simulate": "Run the scheduler on a virtual clock, without a model.",
    "compare": "Compare simulated runs, or routing policies in simulation.",
    "sweep": "Run a grid of scenarios, or search the limit that each holds.",
    "plan": "Search the fewest devices, or the cheapest, that hold an SLO.",
    "bench": "Put a load on a server and print what its clients saw.",
    "calibrate": "Fit what steps cost to logs of a server, and write a cost file.",
    "trace": "Export what a server did: a Perfetto/Chrome trace, JSON lines or Parquet.",
    "policies": "List every policy: what it sees, what it is good at, its blind spot.",
    "models": "List the models on this machine, or fetch one.",
    "route": "Explain where a running server would send a request.",
    "usage": "Export what tenants used of a running server, with its price.",
    "config": "Validate a configuration, or show it with the origin of each value.",
    "doctor": "Explain what was found on this machine and what is missing.",
}


def available_commands() -> dict[str, str]:
    """Return name and help line of the commands whose module is installed, in the order of the table."""
    return {name: line for name, line in COMMANDS.items() if find_spec(f"{__name__}.{name}") is not None}


def help_text() -> str:
    """Return what `headway --help` prints."""
    commands = available_commands()
    width = max((len(name) for name in commands), default=0)
    rows = [f"  {name:<{width}}  {line}" for name, line in commands.items()]
    return "\n".join(
        [
            "Usage: headway COMMAND [OPTIONS]",
            "",
            "One scheduler for LLMs and diffusion models, in production and in simulation.",
            "",
            "Commands:",
            *rows,
            "",
            "`headway COMMAND --help` explains a command. `headway --version` prints the version.",
            "Exit codes: 0 ok, 1 failed, 2 usage.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(help_text(), file=sys.stderr)
        sys.exit(EXIT_USAGE)
    name, rest = arguments[0], arguments[1:]
    if name in ("--help", "-h"):
        print(help_text())
        sys.exit(EXIT_OK)
    if name == "--version":
        print(__version__)
        sys.exit(EXIT_OK)
    commands = available_commands()
    if name not in commands:
        nearest = difflib.get_close_matches(name, commands, n=1)
        hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
        print(f"headway: unknown command `{name}`{hint} (known: {', '.join(commands)})", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    _run(name, rest)


def _run(name: str, arguments: list[str]) -> None:
    from typer.main import get_command

    from headway.core.errors import ConfigError

    try:
        module = importlib.import_module(f"{__name__}.{name}")
        get_command(module.app).main(args=arguments, prog_name=f"headway {name}")
    except ConfigError as error:
        print(f"headway {name}: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
