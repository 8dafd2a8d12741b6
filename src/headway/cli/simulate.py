"""`headway simulate`: a synthetic workload through the production scheduler on a virtual clock, without a model."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from typer.models import OptionInfo

from headway.cli.outputs import check_folder, check_writable, writing
from headway.core.errors import InvariantError

if TYPE_CHECKING:  # the simulator takes its time to import, and --help needs none of it
    from headway.bench.simulated import RunResult
    from headway.cli.progress import Interrupt
    from headway.sim.scenario import Scenario

app = typer.Typer(add_completion=False, rich_markup_mode=None)
DEFAULTS: Final[Mapping[str, object]] = {  # of `sim.scenario`, which --help does not import; a test compares them
    "rate": 10.0,
    "requests": 200,
    "replicas": 2,
    "router": "cost_aware",
    "order": "fcfs",
    "seed": 0,
}


def _option(text: str, default: object) -> OptionInfo:
    """An option that is unset unless given, so that a file can say it."""
    # `Option` returns Any, to stand as a default value.
    found: OptionInfo = typer.Option(help=text, show_default=f"{default}, or what a file says")
    return found


def replay_hint(scenario: "Scenario", files: Sequence[str], changes: Mapping[str, object]) -> str:
    """Return seed, configuration hash and the command that runs the same simulation again."""
    from headway.bench.simulated import config_hash

    words = ["headway", "simulate", *files]
    for name, value in changes.items():
        words += ["--set", f"{name}={msgspec.json.encode(value).decode()}"]
    command = " ".join(shlex.quote(word) for word in words)
    return f"seed {scenario.seed}, configuration {config_hash(scenario)}; again: {command}"


def _print_keys(wanted: bool) -> None:
    if wanted:
        from headway.cli.scenario import keys_text

        typer.echo(keys_text(), nl=False)
        raise typer.Exit


def _read(scenario: Path | None, config: Path | None, changes: Mapping[str, object]) -> "Scenario":
    from headway.cli.scenario import read_config, scenario_of

    served = None if config is None else read_config(config)
    if served is not None:
        for note in served.notes:
            print(f"{config}: {note}", file=sys.stderr)
        if served.ignored:
            print(f"{config}: ignored here: {', '.join(served.ignored)}", file=sys.stderr)
    return scenario_of(scenario, changes, served)


@app.command()
def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="TOML file with [[pools]], [[workload]], [targets] and more.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Try a configuration of `headway serve`.")] = None,
    rate: Annotated[float | None, _option("Arrivals per second.", DEFAULTS["rate"])] = None,
    requests: Annotated[int | None, _option("Requests to send.", DEFAULTS["requests"])] = None,
    replicas: Annotated[int | None, _option("LLM replicas.", DEFAULTS["replicas"])] = None,
    router: Annotated[str | None, _option("See `headway policies router`.", DEFAULTS["router"])] = None,
    order: Annotated[str | None, _option("See `headway policies order`.", DEFAULTS["order"])] = None,
    seed: Annotated[int | None, _option("The same seed, the same log.", DEFAULTS["seed"])] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any key: pools.scheduler.max_seqs=8")] = None,
    out: Annotated[Path | None, typer.Option(help="Write summary, requests, decisions and report to a folder.")] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Say how far it is; in a log each 10 s.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write the event log, one JSON line per event of a node.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    _keys: Annotated[
        bool, typer.Option("--keys", help="Print every key, and end.", callback=_print_keys, is_eager=True)
    ] = False,
) -> None:
    """Run a workload on a virtual clock and print what clients and replicas would see."""
    from headway.bench.simulated import simulate as run_scenario
    from headway.cli.progress import Interrupt, watching
    from headway.cli.scenario import parse_setting

    check_writable("--log", log)
    check_folder("--out", out)
    options: dict[str, object] = {
        "workload.arrivals.rate_per_s": rate,
        "workload.count": requests,
        "seed": seed,
        "pools.replicas": replicas,
        "front.router.type": router,
        "pools.scheduler.order.type": order,
    }
    changes = {name: value for name, value in options.items() if value is not None}
    changes.update(parse_setting(text) for text in set_ or ())
    chosen, interrupt = _read(scenario, config, changes), Interrupt()
    try:
        with watching(progress, interrupt) as watch:
            result = run_scenario(chosen, watch, folder=out, log=log is not None)
    except (InvariantError, AssertionError) as error:
        files = [str(scenario)] if scenario is not None else []
        files += ["--config", str(config)] if config is not None else []
        print(f"simulation failed: {error}\n{replay_hint(chosen, files, changes)}", file=sys.stderr)
        raise typer.Exit(1) from error
    _report(result, out, log, as_json)
    _end(result, interrupt)


def _end(result: "RunResult", interrupt: "Interrupt") -> None:
    from headway.cli.ending import EXIT_INTERRUPTED, exit_code

    if not result.summary.complete:
        print("interrupted: what had ended until then is counted", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED if interrupt.number is None else exit_code(interrupt.number))


def _report(result: "RunResult", out: Path | None, log: Path | None, as_json: bool) -> None:
    from headway.bench.simulated import run_table

    summary = result.summary
    print(msgspec.json.encode(summary).decode() if as_json else run_table(summary))
    if out is not None and not as_json:
        print(f"\nwritten to {out}; compare runs with: headway compare {out} OTHER")
    if result.note:
        print(f"headway simulate: {result.note}", file=sys.stderr)
    if log is not None:
        lines = result.system.sim.log.lines
        with writing("--log", log):
            log.write_bytes(b"".join(line + b"\n" for line in lines))
        if not as_json:
            print(f"\n{len(lines)} events in {log}, sha256 {result.system.sim.log.digest()}")
