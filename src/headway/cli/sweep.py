"""`headway sweep`: a grid of scenarios, or a search for the limit that each holds, on the cores, resumable."""

import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.ending import exit_code, terminable
from headway.cli.outputs import check_writable, writing
from headway.cli.pace import Paced
from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from headway.bench.sweep import Progress, Sweep
    from headway.bench.sweep_rows import Row
    from headway.bench.sweep_search import Direction, Found, Search
    from headway.sim.scenario import Scenario

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
Asked = tuple[str, "Direction", str, str | None, float]  # key, direction, condition, bounds, tolerance


def values_of(text: str) -> tuple[str, list[object]]:
    """`pools.chat.replicas=1,2,4` -> its name and values; `[..]` is a TOML list of them. Raises ConfigError."""
    name, equals, rest = text.partition("=")
    if not equals or not name or not rest:
        raise ConfigError(f"--vary {text!r}: write name=value,value,... for example pools.replicas=1,2,4")
    if rest.startswith("["):
        try:
            found = tomllib.loads(f"value = {rest}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--vary {text!r}: this is no TOML list: {error}") from None
        return name, list(found)
    return name, [_value(part) for part in rest.split(",")]


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()  # a bare word


def _say(progress: "Progress") -> None:
    last = progress.last
    words = ", ".join(f"{name}={value}" for name, value in last.changes.items())
    what = last.error
    if last.summary is not None:
        what = f"attainment {last.summary.attainment:.1%}, goodput {last.summary.goodput_per_s:.2f}/s"
    left = "" if progress.left_s is None else f", {int(progress.left_s) // 60}:{int(progress.left_s) % 60:02} left"
    print(f"{progress.done} of {progress.total}{left}: {words}: {what}", file=sys.stderr, flush=True)


class Waiting:
    """Says that runs are under way where none ends, at most every 10 s."""

    def __init__(self, processes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes, self._clock, self._began_s = processes, clock, clock()
        self._paced, self._ended = Paced(clock=clock), 0

    def ran(self, progress: "Progress") -> None:
        """A run ended."""
        self._ended += 1
        _say(progress)

    def __call__(self) -> None:
        self._paced.say(self.line)

    def line(self) -> str:
        """What is said."""
        took_s = self._clock() - self._began_s
        return f"{self._ended} runs ended in {took_s:.0f} s, up to {self._processes} under way"


def _watched(runner: "Sweep") -> "Sweep":
    waiting = Waiting(runner.processes)
    runner.watch, runner.wait = waiting.ran, waiting
    return runner


class Plan:
    """What is swept: a scenario, changes for all, and the values of the keys that vary."""

    def __init__(
        self,
        path: Path | None,
        changes: Sequence[tuple[str, object]],
        vary: Sequence[tuple[str, list[object]]],
        seeds: str | None,
    ) -> None:
        """`seeds`: None: the scenario's own. Raises ConfigError for what cannot be built, or a key varied twice."""
        self._path, self._changes = path, dict(changes)
        self.base = self.scenario({})
        self.vary = dict(vary)
        if len(self.vary) < len(vary) or "seed" in self.vary:
            raise ConfigError("--vary names a key twice, or the seed: give its values at once, seeds by --seeds")
        try:
            self.seeds = [self.base.seed] if seeds is None else [int(seed) for seed in seeds.split(",")]
        except ValueError:
            raise ConfigError(f"--seeds {seeds}: write whole numbers, for example 1,2,3") from None

    def scenario(self, changes: Mapping[str, object]) -> "Scenario":
        """Return the scenario with some changes. Raises ConfigError."""
        from headway.cli.scenario import scenario_of

        return scenario_of(self._path, {**self._changes, **changes})

    def grid_rows(self, runner: "Sweep", metrics: Sequence[str]) -> "list[Row]":
        """Run every combination."""
        from headway.bench.sweep import grid
        from headway.bench.sweep_rows import check_metrics, rows_of

        if not self.vary:
            raise ConfigError("nothing varies: give --vary KEY=VALUE,VALUE or --find KEY")
        cells = grid(self.vary, self.seeds, self.scenario)
        _check(metrics, cells[0].scenario)
        results = runner.evaluate(cells)
        check_metrics(results, metrics)
        return rows_of(results, metrics)

    def search(self, asked: Asked) -> "Search":
        """Return the search that was asked for. Bounds that are not given lie a factor of 8 around the value."""
        from headway.bench.metrics import condition
        from headway.bench.sweep_search import Search

        key, direction, hold, between, tolerance = asked
        now = self._value(key)
        is_whole = isinstance(now, int)
        if between is not None:
            try:
                low, high = (float(part) for part in between.split(","))
            except ValueError:
                raise ConfigError(f"--between {between}: write two numbers, for example 1,64") from None
        elif isinstance(now, int | float) and now > 0:
            low, high = max(1.0, now // 8) if is_whole else now / 8, now * 8.0
        else:
            self.scenario({key: 1} if now is None else {})  # a key that is none says so
            raise ConfigError(f"--find {key}: it is {now} now; give the bounds with --between LOW,HIGH")
        return Search(key, direction, condition(hold), low, high, tolerance, is_whole)

    def _value(self, key: str) -> object:
        """The value of a key in the base; of the first entry where a list's entries are not told apart."""
        import msgspec

        from headway.bench.config_diff import flat

        values = dict(flat(msgspec.to_builtins(self.base)))
        plain = key.replace("[", ".").replace("]", "")
        if plain in values:
            return values[plain]
        kind, _, rest = plain.partition(".")
        for name, value in values.items():
            if name.split(".", 2)[::2] == [kind, rest]:
                return value
        return None

    def found_rows(self, runner: "Sweep", metrics: Sequence[str], asked: Asked) -> "tuple[list[Row], list[str]]":
        """Search with every combination of what varies; what is found is a metric of its row, under the key's name."""
        from itertools import product

        from headway.bench.sweep_rows import check_metrics, found_row
        from headway.bench.sweep_search import find

        search = self.search(asked)
        _check([search.hold.metric, *metrics], self.base)
        combinations = [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]
        found = find(runner, search, combinations, self.seeds, self.scenario, runner.processes)
        results = [result for one in found for result in one.results]
        check_metrics(results or list(runner.store.results.values()), metrics)
        return [found_row(one, search, metrics) for one in found], [_note(one, search) for one in found]


def _check(metrics: Sequence[str], scenario: "Scenario") -> None:
    """Raise ConfigError for a metric that no run can have, before the first of them."""
    from headway.bench.metrics import check_metric

    for name in metrics:
        check_metric(scenario, name)


def _note(found: "Found", search: "Search") -> str:
    words = ", ".join(f"{name}={value}" for name, value in found.changes.items()) or "here"
    if found.value is None:
        return f"{words}: {search.hold} holds nowhere from {search.low:g} to {search.high:g}"
    if found.is_at_bound:
        return f"{words}: {search.hold} still holds at {found.value}; look further with --between"
    side = "up to" if search.direction == "max" else "from"
    return f"{words}: {search.hold} holds {side} {search.key} = {found.value} ({found.tried} values tried)"


def _report(
    rows: "Sequence[Row]", metrics: Sequence[str], notes: Sequence[str], out: Path | None, as_json: bool
) -> None:
    import msgspec

    from headway.bench.sweep_report import sweep_page
    from headway.bench.sweep_rows import table_text

    if as_json:
        print(msgspec.json.encode({"rows": rows, "notes": notes}).decode())
    else:
        print("\n".join([table_text(rows, metrics), *notes]))
    if out is not None:
        with writing("--out", out):
            out.write_text(sweep_page(out.stem, rows, metrics, notes))


def _interrupted(why: KeyboardInterrupt, there: int, kept: Path | None) -> typer.Exit:
    """Say what is kept, and return how the command ends."""
    words = f"; the same command goes on from {kept}" if kept is not None else ", and not kept"
    print(f"interrupted: {there} runs are there{words}", file=sys.stderr)
    return typer.Exit(exit_code(why))


@app.command()
def sweep(
    scenario: Annotated[Path | None, typer.Argument(help="TOML file, as for `headway simulate`.")] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="A key and its values: pools.chat.replicas=1,2,4. Several make a grid.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A key for all: pools.scheduler.max_seqs=8")] = None,
    seeds: Annotated[str | None, typer.Option(help="Every combination runs with each; unset: the file's seed.")] = None,
    find: Annotated[
        str | None, typer.Option(help="Search this key: its largest value (or --min) that keeps --hold.")
    ] = None,
    is_min: Annotated[bool, typer.Option("--min/--max", help="What --find searches.")] = False,
    hold: Annotated[str, typer.Option(help="The condition of --find, over the mean of the seeds.")] = "attainment>=0.9",
    between: Annotated[str | None, typer.Option(help="Bounds of --find: LOW,HIGH.")] = None,
    tolerance: Annotated[float, typer.Option(help="How close --find gets, as a share of the value.")] = 0.02,
    metric: Annotated[str, typer.Option(help="Sorts the table; a key of summary.json.")] = "goodput_offered_per_s",
    show: Annotated[str | None, typer.Option(help="More keys of summary.json: ttft_ms.p95,queue_ms.p99")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Runs at a time; unset: one per core.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with heat maps and lines.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Runs as JSON lines; what is there is not run again. Unset: beside --out, else not kept."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Run every combination of values, with the same arrivals for all, and print them best first.

    The same command goes on where it was interrupted, if its results are kept.
    """
    from headway.bench.sweep import Store, Sweep
    from headway.bench.sweep_rows import SHOWN, ranked
    from headway.cli.scenario import parse_setting

    check_writable("--out", out)
    kept = results if results is not None else None if out is None else out.with_suffix(".jsonl")
    check_writable("--results", kept)
    plan = Plan(scenario, [parse_setting(text) for text in set_ or ()], [values_of(text) for text in vary or ()], seeds)
    metrics = list(dict.fromkeys([metric, *SHOWN, *(show.split(",") if show else ())]))
    runner = _watched(Sweep(Store(kept), processes or os.cpu_count() or 1))
    try:
        with terminable():
            if find is None:
                rows, notes = plan.grid_rows(runner, metrics), list[str]()
            else:
                asked: Asked = (find, "min" if is_min else "max", hold, between, tolerance)
                rows, notes = plan.found_rows(runner, metrics, asked)
                metrics.insert(0, find)
    except KeyboardInterrupt as why:
        raise _interrupted(why, len(runner.store.results), kept) from None
    order = ranked(rows, metric) if find is None else ranked(rows, find, is_less=is_min)
    _report(order, metrics, notes, out, as_json)
