"""`headway calibrate`: fit what steps cost to logs, and write a cost file."""

import datetime
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway import __version__
from headway.cli.outputs import check_writable, writing
from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from headway.core.step_record import StepRecord
    from headway.cost.fitted import CostFile, Stamp

app = typer.Typer(add_completion=False, no_args_is_help=True)


def parse_layout(text: str) -> dict[str, int]:
    """Read `tp=2,pp=1`. Raises ConfigError."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, count = part.partition("=")
        if name not in ("tp", "pp", "cp", "ep", "dp") or not count.isdecimal() or int(count) < 1:
            raise ConfigError(f"--layout {text}: {part!r} is none of tp=N, pp=N, cp=N, ep=N, dp=N")
        found[name] = int(count)
    return found


def _stamp(engine: str | None, version: str | None, model: str | None, device: str | None, layout: str) -> "Stamp":
    from headway.cost.fitted import Stamp

    missing = [name for name, value in (("--model", model), ("--device", device)) if not value]
    if engine and not version:
        missing.append("--engine-version")
    if missing:
        raise ConfigError(f"a log of steps does not say what was measured: give {' and '.join(missing)}")
    return Stamp(
        engine=engine or "headway",
        engine_version=version or __version__,
        device=str(device),
        model=str(model),
        layout=parse_layout(layout),
    )


def _read(paths: Sequence[Path]) -> tuple[list["StepRecord"], str]:
    from headway.workload.step_logs import read_steps, read_table

    steps: list[StepRecord] = []
    named = []
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        kind = "table" if path.suffix == ".csv" else "steps"
        steps += read_table(content, path.name) if kind == "table" else read_steps(content, path.name)
        named.append(f"{kind} {path.name} {hashlib.sha256(content).hexdigest()[:12]}")
    return steps, ", ".join(named)


@app.command()
def calibrate(
    logs: Annotated[
        list[Path], typer.Argument(help="JSON lines of `headway trace export --format steps`, or CSV tables.")
    ],
    out: Annotated[Path, typer.Option(help="The cost file to write.")],
    model: Annotated[str | None, typer.Option(help="Stamp: the model that was measured.")] = None,
    device: Annotated[str | None, typer.Option(help="Stamp: the device it ran on.")] = None,
    layout: Annotated[str, typer.Option(help="Stamp: parallel layout, like tp=2,pp=1.")] = "",
    engine: Annotated[str | None, typer.Option(help="Stamp: the engine.", show_default="headway")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Stamp: its version.", show_default="this one")] = None,
) -> None:
    """Fit what steps cost to LOG..., report the error on steps that the fit did not see, and write a cost file."""
    from headway.cost.fitted import format_cost_file
    from headway.sim.calibration import Origin, calibrate_steps

    check_writable("--out", out)
    steps, source = _read(logs)
    stamp = _stamp(engine, engine_version, model, device, layout)
    file = calibrate_steps(steps, Origin(stamp, source, datetime.datetime.now(tz=datetime.UTC).date().isoformat()))
    with writing("--out", out):
        out.write_bytes(format_cost_file(file))
    print(told(file))
    print(f"written to {out}")


def told(file: "CostFile") -> str:
    """Return what is printed of a fit: its error first."""
    at = file.coefficients
    lines = [f"{'held out':<10}{'samples':>9}{'mean':>9}{'|error|':>9}{'p50':>9}{'p99':>9}"]
    for metric, error in file.held_out.items():
        shares = (error.mean, error.mae, error.p50, error.p99)
        cells = "".join(f"{'-' if share is None else format(share, '+.1%'):>9}" for share in shares)
        lines.append(f"{metric:<10}{error.samples:>9}{cells}")
    lines += [
        "",
        f"step  = {at.base_ns / 1e6:.3f} ms + {at.row_ns / 1e3:.3g} us/row + {at.kv_ns:.3g} ns/context token "
        f"+ {at.token_ns / 1e3:.3g} us/prompt token + {at.pair_ns:.3g} ns/pair + {at.chunk_ns / 1e3:.3g} us/chunk",
        f"host  = {at.host_base_ns / 1e6:.3f} ms + {at.host_row_ns / 1e3:.3g} us/row",
        f"fitted to {file.samples} samples of {file.source}",
        *(f"note: {note}" for note in file.notes),
    ]
    return "\n".join(lines)
