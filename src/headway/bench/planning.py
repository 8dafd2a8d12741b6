"""Plans a scenario: the fewest devices, or the cheapest ones, that hold its SLO, with reasons and a ranking."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headway.bench.plan_run import Judged, Sizes, Trials, Tried
from headway.bench.plan_search import Answer, Search, State, Watched
from headway.bench.sweep import Sweep
from headway.core.errors import ConfigError
from headway.sim.plan_layouts import Layout, Refused, Space
from headway.sim.plan_load import Load, load_of
from headway.sim.plan_params import PlanParams
from headway.sim.plan_pictures import PictureSpace
from headway.sim.plan_rule import Rule, rules
from headway.sim.plan_stages import StagePlan, stage_plans
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario

RANKED: Final = 2  # runners-up that get an answer of their own


class Row(msgspec.Struct, frozen=True):
    """One layout of the ranking. Without `sizes` nobody knows how many replicas it needs; then `devices` is a bound."""

    name: str
    mode: str
    state: State
    sizes: Sizes
    devices: int
    usd_per_h: float
    is_bound: bool
    attainment: float | None = None  # None: it was ended when the target was out of reach
    low: float | None = None  # of the 95 % interval over the seeds
    high: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    limit: str = ""  # what binds, or what bounds it
    note: str = ""
    lasting: float | None = None  # attained under the longer load, over `lasting_seeds` seeds; None: not proven
    lasting_low: float | None = None  # of the 95 % interval over these; None: one seed
    lasting_high: float | None = None
    lasting_seeds: int = 0


class Loss(msgspec.Struct, frozen=True):
    """Why a layout lost: what it attains, under the longer load, with no more than the winner has."""

    name: str
    sizes: Sizes
    attainment: float | None
    limit: str


class PlanResult(msgspec.Struct, frozen=True):
    """Everything that a plan found. `rows`: best first."""

    complete: bool
    objective: str
    attainment: float
    rate_per_s: float
    rows: tuple[Row, ...]
    losses: tuple[Loss, ...] = ()
    refused: tuple[Refused, ...] = ()
    rules: tuple[Rule, ...] = ()
    runs: int = 0
    seeds: tuple[int, ...] = ()
    curves: dict[str, tuple[tuple[int, float], ...]] = {}  # by layout: devices and attainment, longer load
    notes: tuple[str, ...] = ()
    stages: tuple[StagePlan, ...] = ()  # of a diffusion model

    @property
    def best(self) -> Row | None:
        """The answer."""
        return self.rows[0] if self.rows and self.rows[0].state == "proven" else None


class Planner:
    """One plan. `answer()` may be asked at any time, also after an interruption."""

    def __init__(self, scenario: Scenario, sweep: Sweep, watch: Callable[[Watched], None] = lambda _: None) -> None:
        """Raises ConfigError for a scenario that cannot be planned."""
        self.plan = scenario.plan or PlanParams()
        self.templates = templates_of(scenario, self.plan)
        self.base = base_of(scenario, self.plan, self.templates)
        self.load: Load = load_of(self.base)
        self.space = _space(self.base, self.plan, self.load, self.templates)
        self.layouts = self.space.layouts()
        self.trials = Trials(self.base, self.plan, self.load, sweep)
        self.search = Search(self.plan, self.trials, watch)
        self.losses: list[Loss] = []
        self.complete = False

    def run(self) -> None:
        """Search; KeyboardInterrupt leaves what was found."""
        self.search.run(self.layouts)
        if self.plan.mix:
            self._mix()
        self._explain()
        self.complete = True

    def _mix(self) -> None:
        """Exchange replicas of the best type for those of each other type, as long as that is cheaper."""
        best = self.search.best
        if best is None or best.sizes is None or best.layout.mode != "mixed":
            return
        own, start = best.layout, best.sizes[0]
        cheapest: dict[str, Layout] = {}
        for layout in sorted(self.layouts, key=lambda one: (self.search.price(one, one.least), one.name)):
            device = layout.parts[0].pool.hardware.device
            if layout.mode == "mixed" and device != own.parts[0].pool.hardware.device:
                cheapest.setdefault(device, layout)
        for other in cheapest.values():
            self.search.mix(mixed(own, other), start)

    def _explain(self) -> None:
        """Say of the next best layouts what they attain with the winner's devices, and how many they need."""
        best = self.search.best
        if best is None or best.sizes is None:
            return
        cap, search = self.search.cap, self.search
        fewer = [less for less in reduced(best.sizes) if sum(less)]
        found = self.trials.lasting([Tried(best.layout, less) for less in fewer])
        self.losses += [_loss(best, less, judged) for less, judged in zip(fewer, found, strict=True)]
        name = best.layout.name
        others = [one for one in search.answers.values() if one.layout.name != name and one.layout.mode != "mix"]
        others.sort(
            key=lambda answer: (search.price(answer.layout, answer.sizes or answer.layout.least), answer.layout.name)
        )
        for answer in [one for one in others if one.state != "fails"][:RANKED]:
            sizes = within(search, answer.layout, cap)
            judged = None if sizes is None else self.trials.lasting([Tried(answer.layout, sizes)])[0]
            self.losses.append(_loss(answer, sizes, judged))
            if answer.state in ("lost", "pruned"):
                search.settle(answer.layout, sizes)

    def answer(self) -> PlanResult:
        """Return what is known so far."""
        plan, search = self.plan, self.search
        rows = [_row(answer) for answer in search.answers.values()]
        order = {"proven": 0, "not proven": 1, "lost": 2, "pruned": 2, "fails": 3}
        best = None if self._best is None else self._best.name

        def key(row: Row) -> tuple[int, int, float, float, str]:
            price = row.devices if plan.objective == "devices" else row.usd_per_h
            return row.name != best, order[row.state], price, -(row.attainment or 0.0), row.name

        return PlanResult(
            complete=self.complete,
            objective=plan.objective,
            attainment=plan.attainment,
            rate_per_s=self.load.rate_per_s,
            rows=tuple(sorted(rows, key=key)),
            losses=tuple(self.losses),
            refused=tuple(self.space.refused),
            rules=tuple(self._rules()),
            runs=self.trials.runs,
            seeds=plan.seeds,
            curves=self.trials.curves(),
            notes=tuple(self._notes()),
            stages=tuple(stage_plans(self.base, plan, self.load, self.templates[0], self._best)),
        )

    def _rules(self) -> list[Rule]:
        return rules(self.templates[0], self.base, self.load, self.layouts, self._best)

    @property
    def _best(self) -> Layout | None:
        return None if self.search.best is None else self.search.best.layout

    def _notes(self) -> list[str]:
        if isinstance(self.space, Space):
            return []
        rate = self.load.rate_per_s
        return [
            f"{name}: {rate:.2f}/s x GPU-seconds are {devices:.1f} devices at load 1, where waits have no end (F3)"
            for name, devices in self.space.capacity.items()
        ]


def mixed(first: Layout, second: Layout) -> Layout:
    """Return two layouts behind one router."""
    parts = tuple(
        msgspec.structs.replace(
            layout.parts[0],
            least=0,
            pool=msgspec.structs.replace(layout.parts[0].pool, name=f"{layout.parts[0].pool.name}-{place}"),
        )
        for place, layout in enumerate((first, second))
    )
    return Layout(f"{first.name} and {second.name}", "mix", parts)


def _space(base: Scenario, plan: PlanParams, load: Load, templates: Sequence[PoolParams]) -> Space | PictureSpace:
    if templates[0].kind == "diffusion":
        if len(templates) > 1:
            raise ConfigError(f"several pools serve {templates[0].model}; a plan of a diffusion model begins with one")
        return PictureSpace(base, plan, load, templates[0])
    if plan.models > 1:
        raise ConfigError(f"plan.models = {plan.models} is of diffusion models, and {templates[0].model} is none")
    return Space(base, plan, load, templates)


def templates_of(scenario: Scenario, plan: PlanParams) -> list[PoolParams]:
    """Return the pools that are planned. Raises ConfigError for a name that no pool has."""
    pools = scenario.pools
    chosen = next((pool for pool in pools if pool.name == plan.pool), None) if plan.pool else pools[0]
    if chosen is None:
        raise ConfigError(f"plan.pool = {plan.pool!r}: the pools are {', '.join(pool.name for pool in pools)}")
    return [pool for pool in pools if pool.model == chosen.model]


def base_of(scenario: Scenario, plan: PlanParams, templates: Sequence[PoolParams]) -> Scenario:
    """Return the scenario of the planned model alone, with as many requests as the plan says."""
    if scenario.orchestrator is not None:
        raise ConfigError(
            "orchestrator starts and stops replicas, a plan has a fixed number of them; remove it to plan"
        )
    model, is_first = templates[0].model, scenario.pools[0].model == templates[0].model
    workload = [spec for spec in scenario.workload if spec.model == model or (is_first and not spec.model)]
    if not workload:
        raise ConfigError(
            f"nobody asks for {model}, so that there is nothing to plan; set plan.pool or a workload's model"
        )
    if plan.count is not None:
        workload = [msgspec.structs.replace(spec, count=plan.count) for spec in workload]
    return msgspec.structs.replace(scenario, pools=tuple(templates), workload=tuple(workload), plan=None)


def reduced(sizes: Sizes) -> list[Sizes]:
    """One replica less, of each part in turn."""
    return [
        tuple(size - (at == place) for at, size in enumerate(sizes))
        for place, number in enumerate(sizes)
        if number > 1 or len(sizes) == 1
    ]


def within(search: Search, layout: Layout, cap: float) -> Sizes | None:
    """The most replicas that cost no more than `cap`, in the ratio of the bounds; None: not even the fewest."""
    best, number = None, 1
    unit = layout.split or tuple(max(1, least) for least in layout.least)
    lowest = min(unit)
    while True:
        sizes = tuple(max(1, round(number * one / lowest)) for one in unit)
        if search.price(layout, sizes) > cap:
            return best
        best, number = sizes, number + 1


def _loss(answer: Answer, sizes: Sizes | None, judged: Judged | None) -> Loss:
    if sizes is None or judged is None:
        return Loss(answer.layout.name, answer.layout.least, None, "one replica of it already costs more")
    limit = judged.error or judged.limit
    if any(size < least for size, least in zip(sizes, answer.layout.least, strict=True)):
        limit += ", below what the load needs at least"
    return Loss(answer.layout.name, sizes, judged.attainment, limit)


def _row(answer: Answer) -> Row:
    layout, judged, lasting = answer.layout, answer.judged, answer.lasting
    is_spread = lasting is not None and lasting.seeds > 1
    is_bound = answer.state not in ("proven", "not proven")
    sizes = answer.sizes or layout.least
    return Row(
        name=layout.name,
        mode=layout.mode,
        state=answer.state,
        sizes=sizes,
        devices=layout.devices(sizes),
        usd_per_h=layout.usd_per_h(sizes),
        is_bound=is_bound,
        attainment=None if judged is None or not judged.is_whole else judged.attainment,
        low=None if judged is None or not judged.is_whole else judged.low,
        high=None if judged is None or not judged.is_whole else judged.high,
        ttft_p99_ms=None if judged is None else judged.ttft_p99_ms,
        tpot_p99_ms=None if judged is None else judged.tpot_p99_ms,
        limit=judged.limit if judged is not None else f"bound: {', '.join(part.bound for part in layout.parts)}",
        note=answer.note,
        lasting=None if lasting is None else lasting.attainment,
        lasting_low=lasting.low if lasting is not None and is_spread else None,
        lasting_high=lasting.high if lasting is not None and is_spread else None,
        lasting_seeds=0 if lasting is None else lasting.seeds,
    )
