"""`headway models`: what can be served from this machine, and fetching what cannot yet."""

import time
from typing import Annotated

import typer
from rich.console import Console

from headway.adapters.models import DEFAULT_MODEL, ModelError, list_models, pull

app = typer.Typer(help="List the models on this machine, or fetch one.", add_completion=False)


@app.callback(invoke_without_command=True)
def list_all(context: typer.Context) -> None:
    """List the models on this machine, or fetch one."""
    if context.invoked_subcommand is None:
        list_known()


@app.command("list")
def list_known() -> None:
    """List the models on this machine (the same as `headway models`)."""
    rows = [("NAME", "STATE", "SOURCE", "FOLDER")]
    for model in list_models():
        name = f"{model.name} (default)" if model.name == DEFAULT_MODEL else model.name
        rows.append((name, "ready" if model.is_ready else "not fetched", model.source, str(model.folder)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)] + [0]
    for row in rows:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
    typer.echo("\nA Hugging Face folder or a hub id works too: headway serve --model DIR|OWNER/NAME")


@app.command("pull")
def pull_one(name: Annotated[str, typer.Argument(help="A listed name, or a hub id.")] = DEFAULT_MODEL) -> None:
    """Fetch a model and make it ready to serve."""
    console = Console(stderr=True)
    started = time.monotonic()
    try:
        with console.status(f"{name}: looking") as status:

            def tell(message: str) -> None:
                console.print(f"  {message}", highlight=False)
                status.update(f"{name}: {message}")

            files = pull(name, tell)
    except ModelError as error:
        typer.echo(f"headway models pull: {error}", err=True)
        raise typer.Exit(1) from None
    size_mb = sum(path.stat().st_size for path in files.weights) / 1e6
    typer.echo(f"{files.name}: ready, {size_mb:.0f} MB in {files.folder} ({time.monotonic() - started:.1f} s)")
