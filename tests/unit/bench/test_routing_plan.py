from pathlib import Path

import msgspec
import pytest
from tests.unit.bench.test_routing_study import HEAD

from headway.bench import routing_plan, routing_study
from headway.bench.routing_plan import (
    FULL,
    GRIDS,
    LOADS,
    NOT_COMPARED,
    OURS,
    SCENARIOS,
    SWEEP,
    Knees,
    Plan,
    by_cell,
    jobs_of,
    run_plan,
    sweep_of,
)
from headway.bench.routing_report import page
from headway.bench.routing_study import Runner, Store
from headway.sched.policies import ROUTERS
from headway.sched.registry import discover, select
from headway.sim.routing_fleet import Choice

KNEES = Knees({f"{fleet}/{size}": 10_000.0 for fleet in ("uniform", "starved", "mixed") for size in (2, 8)})


def test_every_routing_policy_is_compared() -> None:
    assert set(GRIDS) | NOT_COMPARED == set(discover(ROUTERS))
    assert not NOT_COMPARED & set(GRIDS)
    assert set(FULL.policies) == set(GRIDS)


@pytest.mark.parametrize("policy", GRIDS)
def test_every_policy_may_try_equally_many_configurations_that_it_understands(policy: str) -> None:
    configurations = sweep_of(policy)
    assert len(configurations) == (SWEEP if GRIDS[policy] else 1)
    assert configurations[0] == Choice(policy)
    assert len({str(configuration) for configuration in configurations}) == len(configurations)
    cls = discover(ROUTERS)[policy]
    for configuration in configurations:
        _, params = select(ROUTERS, "router", configuration.policy(), dict.fromkeys(cls.needs, True))
        assert msgspec.to_builtins(params).items() >= configuration.params.items()


def test_all_policies_of_a_cell_see_the_same_arrivals_and_load() -> None:
    jobs = jobs_of("routing", KNEES, {"a": Choice("a"), "b": Choice("b")}, [("mixed", 8, "past")], (3,))
    assert len({(job.tokens_per_s, job.seed, job.part(12_031).skip) for job in jobs}) == 1
    assert jobs[0].tokens_per_s == 10_000.0 * LOADS["past"]


def test_the_tables_differ_in_admission_and_engine() -> None:
    setups = {
        table: jobs_of(table, KNEES, {"a": Choice("a")}, [("exact", 8, "knee")], (1,))[0].setup
        for table in ("routing", "admission", "whole")
    }
    shown = {name: (s.admission.type, s.late_binding, s.engine) for name, s in setups.items()}
    assert shown == {
        "routing": ("open", False, "plain"),
        "admission": ("predictive", False, "plain"),
        "whole": ("predictive", False, "ours"),
    }


def test_the_full_plan_covers_four_loads_both_sizes_and_all_scenarios() -> None:
    cells = [cell for group, _ in FULL.routing for cell in group]
    assert {load for _, _, load in cells} == set(LOADS)
    assert {size for _, size, _ in cells} == {8, 16}
    assert {scenario for scenario, _, _ in cells} == set(SCENARIOS)
    assert len(cells) == len(set(cells))


def test_a_small_plan_runs_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_plan, "KNEE_LOADS", {2: (2_000.0, 60_000.0)})
    monkeypatch.setattr(routing_study, "REQUESTS", {2: 24})
    cells = (("exact", 2, "knee"), ("exact", 2, "past"))
    plan = Plan("tiny", ("least_tokens", OURS), (2,), ((cells, (1,)),), ((cells[1:], (1,)),), is_tuned=False)
    study = run_plan(Runner(HEAD, Store(tmp_path / "runs.jsonl"), 1, lambda _: None), plan)
    assert len(by_cell(study.of("routing"))[("exact", 2, 1.0)]) == 2
    shown = page(study, "<p>said by hand</p>")
    for piece in ("least_tokens", OURS, "<svg", "said by hand", "Whole systems", "Every router with our admission"):
        assert piece in shown
    assert "http://" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert len(shown) < 1_000_000
