"""`headway simulate`: a synthetic workload through the production scheduler on a virtual clock, without a model."""

import hashlib
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headway.bench.simulated import run_workload
from headway.bench.summary import Targets, summarise, table
from headway.cli.outputs import check_writable, writing
from headway.core.errors import ConfigError, InvariantError
from headway.core.units import s_from_ns
from headway.sim.fleet import Fleet, FleetParams
from headway.workload.requests import Workload

app = typer.Typer(add_completion=False)


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario file: [fleet], [workload] and [targets]."""

    fleet: FleetParams = FleetParams(replicas=2)
    workload: Workload = Workload()
    targets: Targets = Targets()


def read_scenario(path: Path | None, changes: dict[str, object]) -> Scenario:
    """Return the scenario of a file with changes by dotted name. Raises ConfigError naming the key."""
    raw: dict[str, object] = {}
    if path is not None:
        try:
            raw = tomllib.loads(path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"scenario {path}: {error}") from None
    base = msgspec.to_builtins(Scenario()) if path is None else raw
    for name, value in changes.items():
        _set(base, name.split("."), value)
    try:
        return msgspec.convert(base, Scenario)
    except msgspec.ValidationError as error:
        raise ConfigError(f"scenario {path or 'from options'}: {error}") from None


def _set(tree: object, path: list[str], value: object) -> None:
    for key in path[:-1]:
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(path)}: {key} is no section")
        tree = tree.setdefault(key, {})
    if not isinstance(tree, dict):
        raise ConfigError(f"{'.'.join(path)}: not inside a section")
    tree[path[-1]] = value


def parse_setting(text: str) -> tuple[str, object]:
    """`fleet.llm.max_seqs=8` -> its dotted name and TOML value; a bare word is a string. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text!r}: write name=value, for example fleet.llm.max_seqs=8")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


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


def replay_hint(scenario: Scenario, path: Path | None, changes: dict[str, object]) -> str:
    """Return seed, configuration hash and the command that runs the same simulation again."""
    words = ["headway", "simulate", *([str(path)] if path is not None else [])]
    for name, value in changes.items():
        words += ["--set", f"{name}={msgspec.json.encode(value).decode()}"]
    command = " ".join(shlex.quote(word) for word in words)
    return f"seed {scenario.workload.seed}, configuration {config_hash(scenario)}; again: {command}"


@app.command()
def simulate(
    scenario: Annotated[Path | None, typer.Argument(help=r"TOML file with \[fleet], \[workload], \[targets].")] = None,
    rate: Annotated[float | None, typer.Option(help="Arrivals per second.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests to send.")] = None,
    replicas: Annotated[int | None, typer.Option(help="LLM replicas.")] = None,
    router: Annotated[str | None, typer.Option(help="Routing policy; `headway policies` lists them.")] = None,
    order: Annotated[str | None, typer.Option(help="Order policy of the replicas.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the workload; the same seed gives the same log.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other value: fleet.llm.max_seqs=8")] = None,
    log: Annotated[Path | None, typer.Option(help="Write the event log, one JSON line per event of a node.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
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
    chosen = read_scenario(scenario, changes)
    try:
        fleet, outcomes = run_workload(chosen.fleet, chosen.workload)
    except InvariantError as error:
        print(f"simulation failed: {error}\n{replay_hint(chosen, scenario, changes)}", file=sys.stderr)
        raise typer.Exit(1) from error
    summary = summarise(outcomes, chosen.targets)
    if log is not None:
        with writing("--log", log):
            log.write_bytes(b"".join(line + b"\n" for line in fleet.sim.log.lines))
    if as_json:
        print(msgspec.json.encode(summary).decode())
        return
    print(f"scenario   {config_hash(chosen)}, seed {chosen.workload.seed}, {s_from_ns(fleet.sim.now_ns):.2f} virtual s")
    print(table(summary))
    print()
    print("\n".join(fleet_lines(fleet)))
    if log is not None:
        print(f"\n{len(fleet.sim.log.lines)} events in {log}, sha256 {fleet.sim.log.digest()}")
