"""`headway calibrate`: fit what steps cost to logs, and write a cost file."""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import typer

from headway import __version__
from headway.cli.outputs import check_writable, writing
from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from headway.cost.fitted import CostFile, Stamp
    from headway.sim.calibration import Origin

Kind = Literal["table", "steps", "requests", "evidence"]

_HOLDS: Final[Mapping[Kind, str]] = {
    "table": "a table of steps",
    "steps": "steps",
    "requests": "requests of vLLM",
    "evidence": "requests of Headway",
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


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


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; {_log_in(path)}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _log_in(folder: Path) -> str:
    """Say which file of a folder to name."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".jsonl", ".csv") and path.is_file():
            try:
                kind = kind_of(path, path.read_bytes())
            except (ConfigError, OSError):
                continue
            return f"name the log in it: {path} holds {_HOLDS[kind]}"
    if (folder / "requests.parquet").is_file():
        return "a simulated run, whose times come from a cost model: name the log of a server (`headway trace export`)"
    return "name a log: lines of `headway trace export`, vLLM's requests.jsonl, or a table NAME.csv; it holds none"


def kind_of(path: Path, content: bytes) -> Kind:
    """Tell what a log is from its first line. Raises ConfigError for what nothing can be fitted to."""
    if path.suffix == ".csv":
        return "table"
    try:
        first = json.loads(content.lstrip().splitlines()[0])
    except (ValueError, IndexError):
        first = None
    keys = set(first) if isinstance(first, dict) else set()
    if "launched_ns" in keys:
        return "steps"
    if "queued_ts" in keys:
        return "requests"
    if "segments" in keys:
        return "evidence"
    raise ConfigError(
        f"{path} is no log that is known: neither lines of `headway trace export` (steps, jsonl), nor vLLM's requests "
        "(queued_ts, first_token_ts, ...), nor a table (NAME.csv with batch, tokens, time_ms)"
    )


def _source(kind: Kind, path: Path, content: bytes) -> str:
    return f"{kind} {path.name} {hashlib.sha256(content).hexdigest()[:12]}"


def _fit_steps(kinds: Sequence[tuple[Kind, Path, bytes]], stamp: "Stamp", date: str) -> "CostFile":
    from headway.sim.calibration import Origin, calibrate_steps
    from headway.workload.step_logs import read_steps, read_table

    steps = []
    for kind, path, content in kinds:
        steps += read_table(content, path.name) if kind == "table" else read_steps(content, path.name)
    return calibrate_steps(steps, Origin(stamp, ", ".join(_source(*entry) for entry in kinds), date))


def _fit_requests(path: Path, content: bytes, device: str | None, date: str, evaluations: int) -> "CostFile":
    from headway.cost.fitted import Stamp
    from headway.sim.calibration import Origin
    from headway.sim.engine_replay import vllm_scheduler
    from headway.sim.request_fit import Engine, Search, fit_requests
    from headway.workload.request_logs import read_log_meta, read_request_log

    beside = path.with_name("meta.json")
    meta = read_log_meta(_content(beside), str(beside))
    arguments = meta.engine_kwargs
    if not device:
        raise ConfigError(f"{beside} does not say on what device: give --device")
    if arguments.data_parallel_size > 1:
        raise ConfigError(
            f"{beside}: data_parallel_size = {arguments.data_parallel_size} is several schedulers in one log, and it "
            "does not say which served whom; log one of them"
        )
    stamp = Stamp(
        engine="vllm",
        engine_version=meta.vllm_version,
        device=device,
        model=arguments.model,
        layout={"tp": arguments.tensor_parallel_size, "pp": arguments.pipeline_parallel_size},
        dtype=arguments.dtype,
    )
    log = read_request_log(content, path.name)
    engine = Engine(vllm_scheduler(arguments), arguments.block_size)
    return fit_requests(log, engine, Origin(stamp, _source("requests", path, content), date), Search(evaluations))


def _fit_evidence(path: Path, content: bytes, origin: "Origin", config: Path | None, evaluations: int) -> "CostFile":
    from headway.live.config import Config
    from headway.live.config_layers import build, file_layer
    from headway.sim.engine_replay import alone
    from headway.sim.request_fit import Engine, Search, fit_requests
    from headway.workload.evidence_logs import read_evidence

    served, _ = build(Config, [] if config is None else [file_layer(config)])
    log = read_evidence(content, path.name)
    engine = Engine(alone(served.scheduler), served.engine.block_size)
    file = fit_requests(log.requests, engine, origin, Search(evaluations))
    note = (
        f"{len(log.requests)} requests of {log.replica}; {log.left_out} of others, or without an answer, were left out"
    )
    return msgspec.structs.replace(file, notes=(*file.notes, note))


@app.command()
def calibrate(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Lines of `headway trace export --format steps`; CSV tables of batch, tokens and time; or one log of "
            "requests: evidence (--format jsonl), or requests.jsonl of vLLM with meta.json beside it."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The cost file to write.")],
    model: Annotated[str | None, typer.Option(help="Stamp: the model that was measured.")] = None,
    device: Annotated[str | None, typer.Option(help="Stamp: the device it ran on.")] = None,
    layout: Annotated[str, typer.Option(help="Stamp: parallel layout, like tp=2,pp=1.")] = "",
    engine: Annotated[str | None, typer.Option(help="Stamp: the engine.", show_default="headway")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Stamp: its version.", show_default="this one")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of the server that wrote evidence.", show_default="defaults")
    ] = None,
    evaluations: Annotated[
        int, typer.Option(min=1, help="Replays of a log of requests, without and with a KV capacity each.")
    ] = 300,
) -> None:
    """Fit what steps cost to LOG..., report the error on steps that the fit did not see, and write a cost file."""
    from headway.cost.fitted import format_cost_file
    from headway.sim.calibration import Origin

    check_writable("--out", out)
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    contents = [(path, _content(path)) for path in logs]
    kinds = [(kind_of(path, content), path, content) for path, content in contents]
    known = {kind for kind, _, _ in kinds}
    if config is not None and known != {"evidence"}:
        raise ConfigError("--config tells the scheduler behind evidence; leave it out for other logs")
    if not known & {"requests", "evidence"}:
        file = _fit_steps(kinds, _stamp(engine, engine_version, model, device, layout), date)
    elif len(kinds) > 1:
        raise ConfigError("a log of requests is fitted alone: its scheduler is run; name one file")
    elif known == {"evidence"}:
        stamp = _stamp(engine, engine_version, model, device, layout)
        file = _fit_evidence(logs[0], contents[0][1], Origin(stamp, _source(*kinds[0]), date), config, evaluations)
    elif model or engine or engine_version or layout:
        raise ConfigError("meta.json beside a log of requests says model, engine, version and layout; leave them out")
    else:
        file = _fit_requests(logs[0], contents[0][1], device, date, evaluations)
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
