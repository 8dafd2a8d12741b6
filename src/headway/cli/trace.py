"""`headway trace export`: the last minutes of a running server as a Perfetto/Chrome trace."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Export what the server did as a Perfetto/Chrome trace.",
    add_completion=False,
    no_args_is_help=True,
)


@app.callback()
def group() -> None:
    """Export what the server did as a Perfetto/Chrome trace."""


@app.command()
def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("trace.json"),
    url: Annotated[str, typer.Option("--url", help="Of the running server.")] = "http://127.0.0.1:8000",
    seconds: Annotated[float, typer.Option("--seconds", min=0.001, help="How far back.")] = 60.0,
) -> None:
    """Write engine steps (device and host lanes), requests with their segments, and decisions.

    With API keys configured, an admin key is taken from HEADWAY_API_KEY.
    """
    request = urllib.request.Request(f"{url.rstrip('/')}/debug/trace?seconds={seconds:g}")
    if key := os.environ.get("HEADWAY_API_KEY"):
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        typer.echo(f"headway trace: {url} answered {error.code}: {error.read().decode(errors='replace')}", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"headway trace: no server at {url}: {getattr(error, 'reason', error)}", err=True)
        raise typer.Exit(1) from None
    events = len(json.loads(body)["traceEvents"])
    output.write_bytes(body)
    typer.echo(f"{output}: {events} events of the last {seconds:g} s; open it at https://ui.perfetto.dev")
