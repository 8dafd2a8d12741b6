"""`headway simulate`: a synthetic workload through the production scheduler on a virtual clock, without a model."""

import hashlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from typer.models import OptionInfo

from headway.bench.simulated import run_workload
from headway.bench.summary import Summary, summarise, table
from headway.cli.outputs import check_writable, writing
from headway.cli.scenario import Scenario, keys_text, parse_setting, read_config, read_scenario
from headway.core.errors import InvariantError
from headway.core.units import s_from_ns
from headway.sim.fleet import Fleet

app = typer.Typer(add_completion=False)
_DEFAULT: Final = Scenario()


def _option(text: str, default: object) -> OptionInfo:
    """An option that is unset unless given, so that a file can say it."""
    # `Option` returns Any, to stand as a default value.
    found: OptionInfo = typer.Option(help=text, show_default=f"{default}, or what a file says")
    return found


def fleet_lines(fleet: Fleet) -> list[str]:
    """Return one line per replica: how busy it was and what its scheduler counted."""
    now_s = s_from_ns(fleet.sim.now_ns)
    lines = [f"{'replica':<10}{'busy':>8}{'steps':>9}{'preempted':>11}{'prefix hits':>13}"]
    for place, replica in enumerate(fleet.replicas):
        executor = fleet.sim.lives[replica].executor
        counters = dict(fleet.worker(place).worker.machine.counters())
        busy = 0.0 if executor is None or now_s == 0 else s_from_ns(executor.busy_ns) / now_s
        query = counters.get("prefix_query_tokens", 0)
        hits = counters.get("prefix_hit_tokens", 0) / query if query else 0.0
        steps = 0 if executor is None else executor.steps
        lines.append(f"{replica:<10}{busy:>8.1%}{steps:>9}{counters.get('preemptions', 0):>11}{hits:>13.1%}")
    return lines


def config_hash(scenario: Scenario) -> str:
    """Return what two scenarios share only when they are equal."""
    return hashlib.sha256(msgspec.json.encode(scenario)).hexdigest()[:16]


def replay_hint(scenario: Scenario, files: Sequence[str], changes: Mapping[str, object]) -> str:
    """Return seed, configuration hash and the command that runs the same simulation again."""
    words = ["headway", "simulate", *files]
    for name, value in changes.items():
        words += ["--set", f"{name}={msgspec.json.encode(value).decode()}"]
    command = " ".join(shlex.quote(word) for word in words)
    return f"seed {scenario.workload.seed}, configuration {config_hash(scenario)}; again: {command}"


def _print_keys(wanted: bool) -> None:
    if wanted:
        typer.echo(keys_text(), nl=False)
        raise typer.Exit


def _read(scenario: Path | None, config: Path | None, changes: Mapping[str, object]) -> Scenario:
    served = None if config is None else read_config(config)
    if served is not None:
        for note in served.notes:
            print(f"{config}: {note}", file=sys.stderr)
        if served.ignored:
            print(f"{config}: ignored here: {', '.join(served.ignored)}", file=sys.stderr)
    return read_scenario(scenario, changes, served)


@app.command()
def simulate(
    scenario: Annotated[Path | None, typer.Argument(help=r"TOML file with \[fleet], \[workload], \[targets].")] = None,
    config: Annotated[Path | None, typer.Option(help="Try a configuration of `headway serve`.")] = None,
    rate: Annotated[float | None, _option("Arrivals per second.", _DEFAULT.workload.rate_per_s)] = None,
    requests: Annotated[int | None, _option("Requests to send.", _DEFAULT.workload.count)] = None,
    replicas: Annotated[int | None, _option("LLM replicas.", _DEFAULT.fleet.replicas)] = None,
    router: Annotated[str | None, _option("See `headway policies router`.", _DEFAULT.fleet.front.router.type)] = None,
    order: Annotated[str | None, _option("See `headway policies order`.", _DEFAULT.fleet.llm.order.type)] = None,
    seed: Annotated[int | None, _option("The same seed, the same log.", _DEFAULT.workload.seed)] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any key: fleet.llm.max_seqs=8")] = None,
    log: Annotated[Path | None, typer.Option(help="Write the event log, one JSON line per event of a node.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    _keys: Annotated[
        bool, typer.Option("--keys", help="Print every key, and end.", callback=_print_keys, is_eager=True)
    ] = False,
) -> None:
    """Run a workload on a virtual clock and print what clients and replicas would see."""
    check_writable("--log", log)
    options: dict[str, object] = {
        "workload.rate_per_s": rate,
        "workload.count": requests,
        "workload.seed": seed,
        "fleet.replicas": replicas,
        "fleet.front.router.type": router,
        "fleet.llm.order.type": order,
        "fleet.sim.log": True if log is not None else None,
    }
    changes = {name: value for name, value in options.items() if value is not None}
    changes.update(parse_setting(text) for text in set_ or ())
    chosen = _read(scenario, config, changes)
    try:
        fleet, outcomes = run_workload(chosen.fleet, chosen.workload)
    except InvariantError as error:
        files = [str(scenario)] if scenario is not None else []
        files += ["--config", str(config)] if config is not None else []
        print(f"simulation failed: {error}\n{replay_hint(chosen, files, changes)}", file=sys.stderr)
        raise typer.Exit(1) from error
    _report(chosen, fleet, summarise(outcomes, chosen.targets), as_json)
    if log is not None:
        with writing("--log", log):
            log.write_bytes(b"".join(line + b"\n" for line in fleet.sim.log.lines))
        if not as_json:
            print(f"\n{len(fleet.sim.log.lines)} events in {log}, sha256 {fleet.sim.log.digest()}")


def _report(scenario: Scenario, fleet: Fleet, summary: Summary, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(summary).decode())
        return
    virtual_s = s_from_ns(fleet.sim.now_ns)
    print(f"scenario   {config_hash(scenario)}, seed {scenario.workload.seed}, {virtual_s:.2f} virtual s")
    print(table(summary))
    print()
    print("\n".join(fleet_lines(fleet)))
