"""`headway trace export`: the last minutes of a running server as a Perfetto/Chrome trace, JSON lines or Parquet."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.adapters.telemetry.parquet import check_parquet, write_parquet

Format = Literal["chrome", "jsonl", "parquet"]

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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")] = None,
    url: Annotated[str, typer.Option("--url", help="Of the running server.")] = "http://127.0.0.1:8000",
    seconds: Annotated[float, typer.Option("--seconds", min=0.001, help="How far back.")] = 60.0,
    shape: Annotated[Format, typer.Option("--format", help="parquet needs pyarrow (extra `parquet`).")] = "chrome",
) -> None:
    """Write engine steps (device and host lanes), requests with their segments, and decisions.

    As jsonl or parquet: the evidence of every request that ended, one row each.

    With API keys configured, an admin key is taken from HEADWAY_API_KEY.
    """
    if shape == "parquet":
        check_parquet()
    body = _ask(url, f"/debug/trace?seconds={seconds:g}" + ("" if shape == "chrome" else "&format=jsonl"))
    path = output if output is not None else Path("trace.json" if shape == "chrome" else f"evidence.{shape}")
    if shape == "chrome":
        path.write_bytes(body)
        events = len(json.loads(body)["traceEvents"])
        typer.echo(f"{path}: {events} events of the last {seconds:g} s; open it at https://ui.perfetto.dev")
        return
    if shape == "parquet":
        rows = write_parquet(body, path)
    else:
        path.write_bytes(body)
        rows = body.count(b"\n")
    typer.echo(f"{path}: {rows} requests of the last {seconds:g} s")


def _ask(url: str, path: str) -> bytes:
    request = urllib.request.Request(url.rstrip("/") + path)
    if key := os.environ.get("HEADWAY_API_KEY"):
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        typer.echo(f"headway trace: {url} answered {error.code}: {error.read().decode(errors='replace')}", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"headway trace: no server at {url}: {getattr(error, 'reason', error)}", err=True)
        raise typer.Exit(1) from None
