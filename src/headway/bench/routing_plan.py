"""What the routing study compares: policies, their sweeps, scenarios, loads and seeds."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec

from headway.bench.routing_study import Job, Result, Runner, Store, Table, knee
from headway.core.draw import draw_below
from headway.sim.routing_fleet import Choice, Setup

OURS: Final = "cost_aware"
NEUTRAL: Final = "least_tokens"  # finds the knee: it knows load, and nothing of prefixes
OPEN: Final = Choice("open")
PREDICTIVE: Final = Choice("predictive")
LOADS: Final = {"light": 0.4, "70 %": 0.7, "knee": 1.0, "past": 1.5}
KNEE_LOADS: Final = {8: (12_000.0, 14_000.0, 16_000.0), 16: (14_000.0, 16_000.0, 18_000.0)}  # prompt tokens/s/replica
SCENARIOS: Final[Mapping[str, tuple[str, str]]] = {
    "exact": ("uniform", "exact"),
    "stale": ("uniform", "scrape"),
    "starved": ("starved", "exact"),
    "mixed": ("mixed", "exact"),
}
CAPACITY: Final = {"uniform": 1.0, "starved": 0.95, "mixed": 0.675}  # prefill rate of the fleet over a uniform one's
TUNING_SEED: Final = 7
TUNING_LOAD: Final = 1.25
SWEEP: Final = 5  # configurations that each policy may try, its default among them
NOT_COMPARED: Final = frozenset({"least_work"})  # for pictures and videos; what is compared here is text
GRIDS: Final[Mapping[str, Mapping[str, Sequence[object]]]] = {
    "round_robin": {},
    "power_of_two": {},
    "least_requests": {},
    "least_tokens": {"kv": [0.0, 0.03, 0.1, 0.3], "output": [0.0, 1.0, 10.0]},
    "cache_aware": {
        "requests_ratio": [1.1, 1.5, 2.0],
        "requests_slack": [2.0, 4.0, 8.0],
        "queue_per_hit": [0.5, 1.0, 2.0, 4.0],
        "queue_slack": [512, 4096, 16384],
    },
    "sglang_cache_aware": {
        "imbalance_abs": [2, 4, 8, 16, 32],
        "imbalance_rel": [1.1, 1.3, 1.5],
        "match_min": [0.1, 0.3, 0.5],
    },
    "dynamo_kv": {
        "prefill_scale": [0.5, 1.0, 2.0, 4.0, 8.0, 32.0],
        "credit_decay": [0.0, 0.3, 1.0],
        "request_weight": [0.0, 4.0, 16.0],
    },
    "llmd_weighted": {
        "prefix": [1.0, 2.0, 3.0],
        "queue": [1.0, 2.0, 3.0],
        "kv": [1.0, 2.0],
        "prefix_length_weight": [0.0, 0.5],
    },
    "llmd_sticky": {
        "affinity": [0.2, 0.5, 0.8],
        "penalty_s": [0.5, 1.0, 2.0, 5.0, 18.0],
        "bound": ["prefill", "decode"],
    },
    "preble": {"window_s": [15.0, 60.0, 180.0], "imbalance": [1.2, 1.5, 2.0], "tpot_s": [0.03, 0.15]},
    "lmetric": {},
    "smetric": {
        "slack": [0.25, 0.5, 1.0],
        "hit_ratio": [0.1, 0.3, 0.5],
        "ttft_slo_s": [1.0, 2.0],
        "ttft_slo_s_per_1k_tokens": [0.0625, 0.125],
    },
    "dualmap": {"prefix_tokens": [1024, 2048, 4096, 8192]},  # requests bring their SLO
    "mooncake": {},  # its threshold decides pulls, which no policy has here
    OURS: {
        "others": [0.1, 0.3, 1.0],
        "slo": [0.5, 1.0, 2.0],
        "spread": [0.0, 0.5, 1.0],
    },
}

Cell = tuple[str, int, str]  # scenario, replicas, load


class Knees(msgspec.Struct, frozen=True):
    """Prompt tokens per second and replica at the knee, by fleet and size."""

    found: dict[str, float]

    def of(self, fleet: str, replicas: int) -> float:
        """The knee of one fleet."""
        return self.found[f"{fleet}/{replicas}"]


class Tuned(msgspec.Struct, frozen=True):
    """What the sweep chose for one policy."""

    choice: Choice
    goodput: float  # mean over the scenarios of the sweep, share of what was offered
    tried: int


def sweep_of(policy: str) -> list[Choice]:
    """Return the configurations that a policy may try: its default, then keyed draws from its grid, all different."""
    grid, found = GRIDS[policy], [Choice(policy)]
    for number in range(200):
        drawn = {
            name: values[draw_below(1, f"{policy}/{name}", 0, number, len(values))] for name, values in grid.items()
        }
        candidate = Choice(policy, drawn)
        if drawn and candidate not in found:
            found.append(candidate)
        if len(found) == SWEEP:
            break
    return found


def find_knees(runner: Runner, sizes: Sequence[int]) -> Knees:
    """Find where the neutral policy falls below 90 % attainment, per size of a uniform fleet; a seed no table uses.

    Other fleets are loaded in proportion to what they can do.
    """
    wanted = {
        replicas: [
            Job("knee", "exact", _setup("uniform", "exact", replicas, Choice(NEUTRAL)), 0.0, rate, TUNING_SEED)
            for rate in KNEE_LOADS[replicas]
        ]
        for replicas in sizes
    }
    runner.run([job for jobs in wanted.values() for job in jobs])
    found = {}
    for replicas, jobs in wanted.items():
        points = [(result.job.tokens_per_s, result.summary.attainment) for result in runner.run(jobs)]
        for fleet, share in CAPACITY.items():
            found[f"{fleet}/{replicas}"] = knee(points) * share
    return Knees(found)


def tune(runner: Runner, knees: Knees, policies: Sequence[str], *, is_complete: bool = True) -> dict[str, Tuned]:
    """Give every policy the same number of configurations; the best mean over own reports and scraped pages wins.

    Not `is_complete`: choose among those that were run.
    """
    at, load = knees.of("uniform", 8), TUNING_LOAD
    groups = {
        (policy, number): [
            Job("tune", scenario, _setup(*SCENARIOS[scenario], 8, candidate), load, load * at, TUNING_SEED, number)
            for scenario in ("exact", "stale")
        ]
        for policy in policies
        if GRIDS[policy]
        for number, candidate in enumerate(sweep_of(policy))
    }
    if is_complete:
        runner.run([job for group in groups.values() for job in group])
    there = runner.store.results
    tuned: dict[str, Tuned] = {}
    for policy in policies:
        scored = [
            (fmean(there[job.key].summary.attainment for job in group), -number)
            for (name, number), group in groups.items()
            if name == policy and all(job.key in there for job in group)
        ]
        best, place = max(scored, default=(0.0, 0))
        tuned[policy] = Tuned(sweep_of(policy)[-place], best, len(scored))
    return tuned


def _setup(fleet: str, seen: str, replicas: int, router: Choice) -> Setup:
    return Setup(fleet, replicas, router, OPEN, seen)


def jobs_of(
    table: Table, knees: Knees, policies: Mapping[str, Choice], cells: Sequence[Cell], seeds: Sequence[int]
) -> list[Job]:
    """Return the runs of a table."""
    out = []
    for seed in seeds:
        for scenario, replicas, load in cells:
            fleet, seen = SCENARIOS[scenario]
            at = knees.of(fleet, replicas) * LOADS[load]
            for router in policies.values():
                setup = _setup(fleet, seen, replicas, router)
                if table == "admission":
                    setup = msgspec.structs.replace(setup, admission=PREDICTIVE)
                elif table == "whole":
                    setup = msgspec.structs.replace(setup, admission=PREDICTIVE, engine="ours")
                out.append(Job(table, scenario, setup, LOADS[load], at, seed))
    return out


class Plan(msgspec.Struct, frozen=True):
    """Which cells of which table are run with which seeds, the most telling ones first."""

    name: str
    policies: tuple[str, ...]
    sizes: tuple[int, ...]
    routing: tuple[tuple[tuple[Cell, ...], tuple[int, ...]], ...]
    admission: tuple[tuple[tuple[Cell, ...], tuple[int, ...]], ...]
    is_tuned: bool = True


class Study(msgspec.Struct, frozen=True):
    """What a plan has measured."""

    store: Store
    knees: Knees
    tuned: Mapping[str, Tuned]
    keys: frozenset[str]  # runs of the plan; the store may hold others
    command: str

    def of(self, table: Table) -> list[Result]:
        """What the plan measured for a table."""
        return [result for key, result in self.store.results.items() if key in self.keys and result.job.table == table]


def _cells(scenarios: Sequence[str], sizes: Sequence[int], loads: Sequence[str]) -> tuple[Cell, ...]:
    return tuple((scenario, size, load) for scenario in scenarios for size in sizes for load in loads)


LATE: Final = _cells(("exact", "stale"), (8,), ("knee", "past"))
ODD: Final = _cells(("starved", "mixed"), (8,), ("knee", "past"))
FULL: Final = Plan(
    name="full",
    policies=tuple(GRIDS),
    sizes=(8, 16),
    routing=(
        (LATE, (1, 2, 3)),
        (ODD, (1, 2, 3)),
        (_cells(("exact", "stale"), (16,), ("knee", "past")), (1,)),
        (_cells(tuple(SCENARIOS), (8,), ("70 %",)), (1,)),
        (_cells(("exact", "stale"), (16,), ("70 %",)), (1,)),
        (_cells(tuple(SCENARIOS), (8,), ("light",)), (1,)),
    ),
    admission=(((*LATE, *ODD), (1, 2, 3)),),
)
QUICK: Final = Plan(
    name="quick",
    policies=("least_tokens", "lmetric", OURS),
    sizes=(8,),
    routing=((LATE, (1,)),),
    admission=((LATE, (1,)),),
    is_tuned=False,
)


def jobs_of_plan(plan: Plan, knees: Knees, chosen: Mapping[str, Choice]) -> list[Job]:
    """Return every run of a plan, in its order."""
    jobs: list[Job] = []
    for cells, seeds in plan.routing:
        jobs += jobs_of("routing", knees, chosen, cells, seeds)
    for cells, seeds in plan.admission:
        jobs += jobs_of("admission", knees, chosen, cells, seeds)
        jobs += jobs_of("whole", knees, {OURS: chosen[OURS]}, cells, seeds)
    return jobs


def run_plan(runner: Runner, plan: Plan, *, is_complete: bool = True) -> Study:
    """Find the knees, sweep, then run the cells in the order of the plan; or (not `is_complete`) show what is there."""
    knees = find_knees(runner, plan.sizes)
    if plan.is_tuned:
        tuned = tune(runner, knees, plan.policies, is_complete=is_complete)
    else:
        tuned = {policy: Tuned(Choice(policy), 0.0, 0) for policy in plan.policies}
    jobs = jobs_of_plan(plan, knees, {policy: found.choice for policy, found in tuned.items()})
    command = f"headway compare routing{' --quick' if plan.name == 'quick' else ''}"
    if is_complete:
        runner.run(jobs)
    else:
        there = sum(job.key in runner.store.results for job in jobs)
        command += f" --as-is ({there} of the {len(jobs)} runs of the plan)"
    return Study(runner.store, knees, tuned, frozenset(job.key for job in jobs), command)


def by_cell(results: Sequence[Result]) -> dict[tuple[str, int, float], dict[str, list[Result]]]:
    """Group results by scenario, replicas and load, then by policy; seeds in order."""
    cells: dict[tuple[str, int, float], dict[str, list[Result]]] = {}
    for result in sorted(results, key=lambda r: r.job.seed):
        job = result.job
        cell = cells.setdefault((job.scenario, job.setup.replicas, job.load), {})
        cell.setdefault(job.setup.router.type, []).append(result)
    return cells
