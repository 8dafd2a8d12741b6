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
from headway.cli.pace import Paced

if TYPE_CHECKING:
    from headway.bench.plan_search import Watched
    from headway.bench.sweep import Sweep


app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
EXIT_NONE: Final = 1  # nothing holds the target


class Told:
    """Says how far a search is, on stderr: where `is_each` at every layout, else at most every 10 s."""

    def __init__(self, is_each: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_each, self._clock, self._began_s = is_each, clock, clock()
        self._paced = Paced(clock=clock)
        self._at: Watched | None = None
        self._runs = 0

    def ran(self, _: object) -> None:
        """A run of the search ended."""
        self._runs += 1
        self.waited()

    def waited(self) -> None:
        """No run ended for a while."""
        if not self._is_each:
            self._paced.say(self.line)

    def searched(self, at: "Watched") -> None:
        """Layouts are done with."""
        self._at = at
        if self._is_each:
            print(self.line(), file=sys.stderr, flush=True)
        else:
            self._paced.say(self.line)

    def line(self) -> str:
        """What is said."""
        at, took_s = self._at, self._clock() - self._began_s
        ended = f"{self._runs} runs ended in {took_s:.0f} s"
        if at is None:
            return f"first layout, {ended}"
        what = f"{at.done} of {at.total} layouts, {ended}"
        if at.done == at.total:
            return f"{what}, now the runners-up; best: {at.best}"
        return f"{what}, about {took_s / at.done * (at.total - at.done):.0f} s left; best: {at.best}"


def _told(sweep: "Sweep", progress: bool | None) -> Told | None:
    """Let the runs of a sweep be counted. None: nothing is said."""
    if progress is False:
        return None
    told = Told(is_each=bool(progress) or sys.stderr.isatty())
    sweep.watch, sweep.wait = told.ran, told.waited
    return told


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
        bool | None, typer.Option("--progress/--no-progress", help="Say how far it is; in a log each 10 s.")
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
    sweep = Sweep(Store(results), processes or os.cpu_count() or 1, run=run)
    told = _told(sweep, progress)
    planner = Planner(chosen, sweep, told.searched) if told else Planner(chosen, sweep)
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
