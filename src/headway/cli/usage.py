"""`headway usage`: what tenants used of a running server, as CSV or JSON lines."""

import sys
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode

import typer

from headway.cli import EXIT_FAILED
from headway.cli.servers import DEFAULT_URL, ServerError, Url, ask, server_url
from headway.core.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def usage(
    url: Url = DEFAULT_URL,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="An admin key sees all tenants.")] = None,
    first_day: Annotated[str | None, typer.Option(help="As 2026-11-01 (UTC); else 30 days before the last.")] = None,
    last_day: Annotated[str | None, typer.Option(help="As 2026-11-30; else today.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    form: Annotated[Literal["csv", "jsonl"], typer.Option("--format", help="Of the output.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="File to write; else standard output.")] = None,
) -> None:
    """Export use and price by day, tenant and model from a running server."""
    asked = {"format": form, "first_day": first_day, "last_day": last_day, "tenant": tenant, "model": model}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    try:
        found = ask(server_url(url), f"/v1/usage/export?{query}", api_key)
    except ServerError as error:
        typer.echo(f"headway usage: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    if out is None:
        sys.stdout.buffer.write(found)
        return
    try:
        out.write_bytes(found)
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}") from None
