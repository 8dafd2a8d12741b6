"""`headway trace export`: the last minutes of a running server as a Perfetto/Chrome trace, JSON lines or Parquet."""

import json
import os
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from headway.cli import EXIT_FAILED
from headway.cli.outputs import check_writable, writing
from headway.cli.servers import DEFAULT_URL, ServerError, Url, ask, server_url

Format = Literal["chrome", "jsonl", "steps", "parquet"]

_NAMES: Final = {
    "chrome": "trace.json",
    "jsonl": "evidence.jsonl",
    "steps": "steps.jsonl",
    "parquet": "evidence.parquet",
}
_ASKED: Final = {"chrome": "", "jsonl": "&format=jsonl", "steps": "&format=steps", "parquet": "&format=jsonl"}

app = typer.Typer(
    help="Export what the server did as a Perfetto/Chrome trace.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback()
def group() -> None:
    """Export what the server did as a Perfetto/Chrome trace."""


@app.command()
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")] = None,
    url: Url = DEFAULT_URL,
    seconds: Annotated[float, typer.Option("--seconds", min=0.001, help="How far back.")] = 60.0,
    shape: Annotated[Format, typer.Option("--format", help="parquet needs pyarrow (extra `parquet`).")] = "chrome",
) -> None:
    """Write engine steps (device and host lanes), requests with their segments, and decisions.

    As jsonl or parquet: the evidence of every request that ended, one row each. As steps: a JSON line per engine step,
    its shape and times, for `headway calibrate`.

    With API keys configured, an admin key is taken from HEADWAY_API_KEY.
    """
    path = output if output is not None else Path(_NAMES[shape])
    check_writable("--output", path)
    if shape == "parquet":
        from headway.bench.parquet import check_parquet

        check_parquet()
    what = f"/debug/trace?seconds={seconds:g}" + _ASKED[shape]
    server = server_url(url)
    try:
        body = ask(server, what, os.environ.get("HEADWAY_API_KEY"))
        found = _count(body, shape, f"{server}{what}")
    except ServerError as error:
        typer.echo(f"headway trace: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    with writing("--output", path):
        if shape == "parquet":
            from headway.bench.parquet import write_parquet

            write_parquet(body, path)
        else:
            path.write_bytes(body)
    last = f"the last {seconds:g} s"
    if shape == "chrome":
        typer.echo(f"{path}: {found} events of {last}; open it at https://ui.perfetto.dev")
    else:
        typer.echo(f"{path}: {found} {'steps' if shape == 'steps' else 'requests'} of {last}")


def _count(body: bytes, shape: Format, asked: str) -> int:
    """Events, requests or steps in an answer. Raises ServerError when it is not what a Headway server sends."""
    try:
        if shape == "chrome":
            return len(json.loads(body)["traceEvents"])
        return len([json.loads(line)["step" if shape == "steps" else "request"] for line in body.splitlines()])
    except (ValueError, KeyError, TypeError):
        raise ServerError(f"{asked} answered 200, but no trace; is this a Headway server?") from None
