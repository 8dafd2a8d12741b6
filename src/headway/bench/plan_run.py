"""Tries sizes of a layout: one run per seed, the same arrivals for all, ended as soon as the target is out of reach."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headway.bench.ends import RequestEnd
from headway.bench.intervals import interval
from headway.bench.results import Tally
from headway.bench.run_summary import RunSummary
from headway.bench.simulated import Progress, simulate
from headway.bench.summary import meets
from headway.bench.sweep import Cell, Result, Sweep
from headway.core.errors import HeadwayError, InvariantError
from headway.core.units import Ns
from headway.sim.clients import Stream
from headway.sim.plan_layouts import Layout
from headway.sim.plan_load import Load
from headway.sim.plan_params import PlanParams
from headway.sim.scenario import Scenario
from headway.sim.system import System

KV_FULL: Final = 0.97  # of the blocks in use at once
Sizes = tuple[int, ...]


class Run(Cell, frozen=True):
    """A run that ends when more than `misses_max` requests have missed; None: it goes to its end."""

    misses_max: int | None = None

    @property
    def key(self) -> str:
        """A run that may end early is not the whole one."""
        whole = super().key
        return whole if self.misses_max is None else f"{whole}-{self.misses_max}"


class MissTally(Tally):
    """Counts what has missed, one by one."""

    def __init__(self, warmup_ns: Ns) -> None:
        super().__init__(warmup_ns)
        self._begun_ns, self.misses = warmup_ns, 0

    def ended(self, end: RequestEnd) -> None:
        """Count a request."""
        super().ended(end)
        if end.outcome.sent_ns >= self._begun_ns and not meets(end.outcome, end.targets):
            self.misses += 1


def run(cell: Cell) -> Result | InvariantError:
    """Run one in this process."""
    scenario = cell.scenario
    limit = cell.misses_max if isinstance(cell, Run) and cell.misses_max is not None else math.inf
    tally = MissTally(scenario.sim.warmup_ns)

    def is_open(at: Progress) -> bool:
        """Whether the target is within reach."""
        if tally.misses > limit:
            return False
        return at.system is None or limit == math.inf or tally.misses + missed(at.system) <= limit

    try:
        summary = simulate(scenario, is_open, tally=tally).summary
    except InvariantError as error:
        return InvariantError(f"{error} (with {cell.changes})")
    except HeadwayError as error:
        return Result(cell.key, cell.changes, None, str(error))
    return Result(cell.key, cell.changes, summary)


def missed(system: System) -> int:
    """Count the requests under way that can no longer meet what they were promised."""
    now_ns, begun_ns = system.sim.now_ns, system.scenario.sim.warmup_ns
    return sum(
        _is_missed(stream, system.scenario, now_ns)
        for stream in system.sim.clients.streams.values()
        if stream.sent_ns >= begun_ns
    )


def _is_missed(stream: Stream, scenario: Scenario, now_ns: Ns) -> bool:
    offered, way_ns = stream.offered, scenario.network.client_ns
    if offered is None or stream.end is not None:  # counted with its record
        return False
    slo = offered.request.slo  # fixed when the gateway received it, one way after it was sent
    first_ns = stream.first_ns
    ttft_due, e2e_due = slo.ttft_deadline_ns, slo.e2e_deadline_ns
    if ttft_due is not None and (now_ns if first_ns is None else first_ns) > ttft_due + 2 * way_ns:
        return True
    if e2e_due is not None and now_ns > e2e_due + 2 * way_ns:
        return True
    if slo.tpot_ns is None or first_ns is None:
        return False
    return (
        now_ns - first_ns > slo.tpot_ns * max(0, offered.output_tokens - 1) + 2 * way_ns and offered.output_tokens > 1
    )


class Judged(msgspec.Struct, frozen=True):
    """What came of some sizes of a layout. `is_whole`: no run was ended early, so that shares are of all requests."""

    sizes: Sizes
    holds: bool  # the target is met, over all seeds together
    is_whole: bool
    attainment: float  # of what was run
    low: float = 0.0  # of a 95 % interval over the seeds
    high: float = 1.0
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    limit: str = ""  # what binds
    error: str = ""  # why it cannot run
    seeds: int = 1  # that it was judged by


class Tried(msgspec.Struct, frozen=True):
    """What to try: sizes of a layout. `is_whole`: to the end, whatever is missed."""

    layout: Layout
    sizes: Sizes
    is_whole: bool = False


class Trials:
    """Runs what is tried, and remembers it."""

    def __init__(self, base: Scenario, plan: PlanParams, load: Load, sweep: Sweep) -> None:
        """`base`: the scenario with its load, without the pools that are planned."""
        self._base, self._plan, self._sweep = base, plan, sweep
        self._sent = load.sent
        self._known: dict[tuple[str, Sizes, bool], Judged] = {}
        self._lasting: dict[tuple[str, Sizes], Judged] = {}
        self._devices: dict[tuple[str, Sizes], int] = {}
        self.runs = 0

    def judge(self, tried: Sequence[Tried]) -> list[Judged]:
        """Judge all at once. The first seed goes ahead: most of what fails fails there."""
        missing = {self._key(one): one for one in tried if self._find(one) is None}
        first, *others = self._plan.seeds
        results = {key: [result] for key, result in self._run([(key, one, first, 0) for key, one in missing.items()])}
        more = []
        for key, one in missing.items():
            if one.is_whole or not self._is_over(results[key]):
                more += [(key, one, seed, self._misses(results[key])) for seed in others]
        for key, result in self._run(more):
            results[key].append(result)
        for key, one in missing.items():
            self._known[key] = self._judged(one, results[key], len(self._plan.seeds))
        return [judged for one in tried if (judged := self._find(one)) is not None]

    def _find(self, one: Tried) -> Judged | None:
        """What is known of it; a run that went to its end although it might have ended early is as good as a whole."""
        bounded = self._known.get((one.layout.name, one.sizes, False))
        if bounded is not None and (bounded.is_whole or not one.is_whole):
            return bounded
        return self._known.get((one.layout.name, one.sizes, True))

    def lasting(self, tried: Sequence[Tried]) -> list[Judged]:
        """Judge, by the first seed, under a load that lasts longer: where queues or batches grow, it attains less."""
        longer = _longer(self._base, self._plan.confirm)
        missing = [one for one in tried if (one.layout.name, one.sizes) not in self._lasting]
        cells = [self._cell(one, self._plan.seeds[0], None, longer) for one in missing]
        self.runs += len(cells)
        for one, result in zip(missing, self._sweep.evaluate(cells) if cells else [], strict=True):
            self._lasting[one.layout.name, one.sizes] = self._judged(one, [result], 1)
            self._devices[one.layout.name, one.sizes] = one.layout.devices(one.sizes)
        return [self._lasting[one.layout.name, one.sizes] for one in tried]

    def confirm(self, one: Tried) -> Judged:
        """Judge an answer under the longer load by several seeds. The first goes ahead: where it fails, so does all."""
        first = self.lasting([one])[0]
        others = self._plan.confirm_seeds[1:]
        if first.error or first.attainment < self._plan.attainment or first.seeds > 1 or not others:
            return first
        longer = _longer(self._base, self._plan.confirm)
        cells = [self._cell(one, seed, None, longer) for seed in self._plan.confirm_seeds]
        self.runs += len(others)  # the first is there
        judged = self._judged(one, self._sweep.evaluate(cells), len(cells))
        self._lasting[one.layout.name, one.sizes] = judged
        return judged

    def curves(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return, by layout, devices and attainment under the longer load."""
        found: dict[str, dict[int, float]] = {}
        for (name, sizes), judged in self._lasting.items():
            if not judged.error:
                found.setdefault(name, {})[self._devices[name, sizes]] = judged.attainment
        return {name: tuple(sorted(points.items())) for name, points in found.items()}

    @staticmethod
    def _key(one: Tried) -> tuple[str, Sizes, bool]:
        return one.layout.name, one.sizes, one.is_whole

    @property
    def _allowed(self) -> int | None:
        """Misses of all seeds together that leave the target within reach."""
        if self._sent is None:
            return None
        return math.floor((1 - self._plan.attainment) * self._sent * len(self._plan.seeds) + 1e-9)

    def _run(
        self, asked: Sequence[tuple[tuple[str, Sizes, bool], Tried, int, int]]
    ) -> list[tuple[tuple[str, Sizes, bool], Result]]:
        allowed = self._allowed
        cells = []
        for _, one, seed, missed in asked:
            limit = None if allowed is None or one.is_whole else allowed - missed
            cells.append(self._cell(one, seed, limit, self._base))
        self.runs += len(cells)
        found = self._sweep.evaluate(cells) if cells else []
        return [(key, result) for (key, *_), result in zip(asked, found, strict=True)]

    @staticmethod
    def _cell(one: Tried, seed: int, limit: int | None, base: Scenario) -> Run:
        changes: dict[str, object] = {"layout": one.layout.name, "replicas": list(one.sizes), "seed": seed}
        scenario = msgspec.structs.replace(one.layout.scenario(base, one.sizes), seed=seed)
        return Run(changes, scenario, limit)

    def _is_over(self, results: Sequence[Result]) -> bool:
        summary = results[0].summary
        return summary is None or not summary.complete

    @staticmethod
    def _misses(results: Sequence[Result]) -> int:
        summaries = [result.summary for result in results if result.summary is not None]
        return sum(round((1 - summary.attainment) * summary.sent) for summary in summaries)

    def _judged(self, one: Tried, results: Sequence[Result], seeds: int) -> Judged:
        summaries = [result.summary for result in results if result.summary is not None]
        if len(summaries) < len(results):
            error = next(result.error for result in results if result.error) or "no result"
            return Judged(one.sizes, False, False, 0.0, error=error)
        shares = [summary.attainment for summary in summaries]
        sent = sum(summary.sent for summary in summaries)
        pooled = sum(share * summary.sent for share, summary in zip(shares, summaries, strict=True)) / max(1, sent)
        is_whole = len(shares) == seeds and all(summary.complete for summary in summaries)
        low, high = interval(shares) if is_whole else (0.0, self._plan.attainment)
        return Judged(
            sizes=one.sizes,
            holds=is_whole and pooled >= self._plan.attainment - 1e-12,
            is_whole=is_whole,
            attainment=pooled,
            low=low,
            high=high,
            ttft_p99_ms=_worst(summary.ttft_ms.p99 for summary in summaries),
            tpot_p99_ms=_worst(summary.tpot_ms.p99 for summary in summaries),
            limit=binds(summaries),
            seeds=len(shares),
        )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def binds(summaries: Sequence[RunSummary]) -> str:
    """Return which limit costs most requests: a refusal, KV, TTFT (by queue or prompt), TPOT or e2e."""
    missed: dict[str, float] = {}
    for summary in summaries:
        for name in ("ttft", "tpot", "e2e"):
            share = summary.attained.get(name)
            if share is not None:
                missed[name] = missed.get(name, 0.0) + 1 - share
    failed = sum(summary.sent - summary.completed - summary.unfinished for summary in summaries)
    sent = max(1, sum(summary.sent for summary in summaries))
    if failed / sent > 0.5 * max(missed.values(), default=0.0) / len(summaries) and failed:
        codes: dict[str, int] = {}
        for summary in summaries:
            for code, count in summary.errors.items():
                codes[code] = codes.get(code, 0) + count
        return f"refused ({max(codes, key=lambda code: codes[code])})" if codes else "refused"
    pools = [pool for summary in summaries for pool in summary.pool_use.values()]
    if any((pool.kv_peak or 0.0) >= KV_FULL for pool in pools) and any(summary.preemptions for summary in summaries):
        return "KV"
    if not any(missed.values()):
        return "nothing missed"
    name = max(missed, key=lambda key: missed[key])
    if name != "ttft":
        return name.upper() if name == "tpot" else name
    last = summaries[-1]
    waits = (last.queue_ms.p99 or 0.0) >= 0.5 * (last.ttft_ms.p99 or math.inf)
    return "TTFT (queue)" if waits else "TTFT (prefill)"


def _longer(base: Scenario, factor: float) -> Scenario:
    """The same load for so many times the requests; one whose length nobody says stays as it is."""
    workload = tuple(
        msgspec.structs.replace(spec, count=round(spec.count * factor)) if spec.count is not None else spec
        for spec in base.workload
    )
    return base if factor == 1 else msgspec.structs.replace(base, workload=workload)
