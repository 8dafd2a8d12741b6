"""`headway compare DIR DIR`: runs side by side. `headway compare routing`: every router in simulation, as a report."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperGroup

from headway.cli.outputs import check_writable, writing

if TYPE_CHECKING:
    from headway.bench.routing_plan import Plan

TRACE: Final = Path("../shared/data/traces/mooncake_conversation.jsonl")
RUNS: Final = "runs"


class FoldersFirst(TyperGroup):
    """What is no name of a command is given to `runs`: folders and its options."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer has its own click, whose context has no public name
        """Put the command's name before its arguments."""
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = [RUNS, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, cls=FoldersFirst)


@app.callback()
def compare() -> None:
    """Compare what `headway simulate --out DIR` left behind: `headway compare DIR DIR`."""


@app.command(name=RUNS)
def runs(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs; the others are compared with the first.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write a page with the distributions over each other.")] = None,
) -> None:
    """Metrics side by side, with differences, intervals, and which configuration keys differ (the default command)."""
    import msgspec

    from headway.bench.compare_report import comparison_page, comparison_text
    from headway.bench.compare_runs import compare as compare_them
    from headway.bench.compare_runs import names_of, read_compared
    from headway.bench.results import read_series
    from headway.core.errors import ConfigError

    check_writable("--out", out)
    if len(folders) < 2:
        raise ConfigError(f"{folders[0]} alone: name two folders or more")
    found = [read_compared(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]
    comparison = compare_them(found)
    print(msgspec.json.encode(comparison).decode() if as_json else comparison_text(comparison))
    if out is not None:
        page = comparison_page(comparison, found, [read_series(folder) for folder in folders])
        with writing("--out", out):
            out.write_text(page)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _plan(quick: bool) -> "Plan":
    from headway.bench import routing_plan

    return routing_plan.QUICK if quick else routing_plan.FULL


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
    from headway.bench.routing_plan import run_plan
    from headway.bench.routing_report import page
    from headway.bench.routing_study import Runner, Store

    check_writable("--out", out)
    store = Store(out.with_suffix(".jsonl") if results is None else results)
    text = "" if notes is None else notes.read_text()
    study = run_plan(Runner(trace, store, processes, _say), _plan(quick), is_complete=not as_is)
    with writing("--out", out):
        out.write_text(page(study, text))
    print(f"{len(store.results)} runs in {out}")
