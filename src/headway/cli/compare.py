"""`headway compare`: policies against each other in simulation, as a report."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.bench.routing_plan import FULL, QUICK, Plan, run_plan
from headway.bench.routing_report import page
from headway.bench.routing_study import Runner, Store
from headway.cli.outputs import check_writable, writing

app = typer.Typer(add_completion=False, no_args_is_help=True)
TRACE: Final = Path("../shared/data/traces/mooncake_conversation.jsonl")


@app.callback()
def compare() -> None:
    """Compare policies in simulation."""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@app.command()
def routing(
    trace: Annotated[Path, typer.Option(help="The Mooncake conversation trace.")] = TRACE,
    quick: Annotated[bool, typer.Option(help="Few policies, 8 replicas, one seed: minutes.")] = False,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("routing-report.html"),
    results: Annotated[
        Path | None, typer.Option(help="Runs as JSON lines; what is there is not run again. Unset: beside the report.")
    ] = None,
    notes: Annotated[Path | None, typer.Option(help="A piece of HTML to put under the verdicts.")] = None,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Run nothing but the search for the knee; report what has results.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
) -> None:
    """Run every routing policy on a public trace at four loads, and write an HTML report."""
    check_writable("--out", out)
    plan: Plan = QUICK if quick else FULL
    store = Store(out.with_suffix(".jsonl") if results is None else results)
    text = "" if notes is None else notes.read_text()
    study = run_plan(Runner(trace, store, processes, _say), plan, is_complete=not as_is)
    with writing("--out", out):
        out.write_text(page(study, text))
    print(f"{len(store.results)} runs in {out}")
