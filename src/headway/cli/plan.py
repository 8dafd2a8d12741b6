"""`headway plan`: the fewest devices, or the cheapest, that hold a scenario's SLO, by search over simulation."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headway.cli.ending import EXIT_INTERRUPTED, exit_code, terminable
from headway.cli.outputs import check_writable, writing

if TYPE_CHECKING:
    from headway.bench.plan_search import Watched

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
EXIT_NONE: Final = 1  # nothing holds the target


def _watch(is_shown: bool) -> "Callable[[Watched], None]":
    began_s = time.monotonic()

    def say(at: "Watched") -> None:
        if not is_shown:
            return
        took_s = time.monotonic() - began_s
        left_s = took_s / at.done * (at.total - at.done)
        print(
            f"{at.done} of {at.total} layouts in {took_s:.0f} s, about {left_s:.0f} s left; best: {at.best}",
            file=sys.stderr,
            flush=True,
        )

    return say


@app.command()
def plan(
    scenario: Annotated[Path, typer.Argument(help="TOML file as for `headway simulate`, with [plan].")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any key: plan.attainment=0.99")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Runs at a time; unset: one per core.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Keep runs as JSON lines; what is there is not run again.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with the ranking and pictures.")] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Say how far it is; unset: on a terminal.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Search device types, layouts, replicas and chunks for the fewest devices that hold the SLO, and say why."""
    import msgspec

    from headway.bench.plan_run import run
    from headway.bench.plan_text import text
    from headway.bench.planning import Planner
    from headway.bench.sweep import Store, Sweep
    from headway.cli.scenario import parse_setting, scenario_of

    check_writable("--out", out)
    check_writable("--results", results)
    chosen = scenario_of(scenario, dict(parse_setting(item) for item in set_ or ()))
    is_shown = sys.stderr.isatty() if progress is None else progress
    sweep = Sweep(Store(results), processes or os.cpu_count() or 1, run=run)
    planner = Planner(chosen, sweep, _watch(is_shown))
    code = EXIT_INTERRUPTED
    try:
        with terminable():
            planner.run()
    except KeyboardInterrupt as why:
        code = exit_code(why)
        print("interrupted: the ranking so far", file=sys.stderr)
    result = planner.answer()
    print(msgspec.json.encode(result).decode() if as_json else text(result))
    if out is not None:
        from headway.bench.plan_report import plan_page

        with writing("--out", out):
            out.write_text(plan_page(scenario.stem, result))
    if not result.complete:
        raise typer.Exit(code)
    if result.best is None:
        raise typer.Exit(EXIT_NONE)
