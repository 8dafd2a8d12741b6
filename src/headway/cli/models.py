"""`headway models`: what can be served from this machine, fetching what cannot yet, and what the cost models know."""

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from headway.adapters.models import DEFAULT_MODEL, ModelError, list_models, pull
from headway.cli.tables import table_text

app = typer.Typer(help="List the models on this machine, or fetch one.", add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def list_all(
    context: typer.Context,
    catalogue: Annotated[
        bool, typer.Option(help="List the models that the simulator knows, with their sizes.")
    ] = False,
    devices: Annotated[bool, typer.Option(help="List the devices and links that the simulator knows.")] = False,
) -> None:
    """List the models on this machine, or fetch one."""
    if context.invoked_subcommand is not None:
        return
    if catalogue:
        _list_catalogue()
    if devices:
        _list_devices()
    if not catalogue and not devices:
        list_known()


@app.command("list")
def list_known() -> None:
    """List the models on this machine (the same as `headway models`)."""
    rows = [("NAME", "STATE", "SOURCE", "FOLDER")]
    for model in list_models():
        name = f"{model.name} (default)" if model.name == DEFAULT_MODEL else model.name
        rows.append((name, "ready" if model.is_ready else "not fetched", model.source, str(model.folder)))
    tiny = _tiny()
    rows += [(name, "ready", "trained here", folder) for name, folder in tiny]
    _print_table(rows)
    if tiny:
        typer.echo("\n`headway serve` takes the tiny models (pictures, videos) too while nothing is said of models.")
    typer.echo("\nA Hugging Face folder or a hub id works too: headway serve --model DIR|OWNER/NAME")


def _tiny() -> list[tuple[str, str]]:
    from headway.live.config_tiny import tiny_folder, tiny_models

    folder = tiny_folder()
    return [] if folder is None else [(model.name, model.folder or "") for model in tiny_models(folder)]


def _list_catalogue() -> None:
    from headway.cost.diffusion_models import DIFFUSION_MODELS
    from headway.cost.models_catalogue import MODELS

    rows = [("NAME", "PARAMETERS", "ACTIVE", "KV/TOKEN", "DATE", "SOURCE")]
    for model in MODELS.values():
        sizes = (f"{model.parameters / 1e9:.2f}B", f"{model.parameters_active / 1e9:.2f}B")
        rows.append((model.name, *sizes, f"{model.kv_bytes_per_token() / 1024:g} KiB", model.date, model.source))
    _print_table(rows)
    typer.echo("")
    _print_table(
        [("NAME", "DATE", "SOURCE"), *((entry.name, entry.date, entry.source) for entry in DIFFUSION_MODELS.values())]
    )


def _list_devices() -> None:
    from headway.cost.devices import DEVICES
    from headway.cost.efficiency import EFFICIENCIES
    from headway.cost.links import LINKS

    rows = [("NAME", "BF16 TFLOP/S", "GB/S", "MEMORY GB", "LINK", "$/H", "DATE", "SOURCE")]
    for device in DEVICES.values():
        peak = device.flops_of("bfloat16") / 1e12
        speeds = (f"{peak:g}", f"{device.bytes_per_s / 1e9:g}", f"{device.memory_bytes / 1e9:.1f}")
        rows.append((device.name, *speeds, device.link, f"{device.price_per_hour:g}", device.date, device.source))
    _print_table(rows)
    typer.echo("")
    links = [("LINK", "KIND", "PEAK GB/S", "REACHED GB/S", "DATE", "SOURCE")]
    for link in LINKS.values():
        rates = (f"{link.peak_bytes_per_s / 1e9:g}", f"{link.bytes_per_s / 1e9:.3g}")
        links.append((link.name, link.kind, *rates, link.date, link.source))
    _print_table(links)
    typer.echo("")
    _print_table(
        [("EFFICIENCY", "DATE", "SOURCE"), *((entry.name, entry.date, entry.source) for entry in EFFICIENCIES.values())]
    )


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    typer.echo(table_text(rows))


@app.command("pull")
def pull_one(name: Annotated[str, typer.Argument(help="A listed name, or a hub id.")] = DEFAULT_MODEL) -> None:
    """Fetch a model and make it ready to serve."""
    from rich.console import Console

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
