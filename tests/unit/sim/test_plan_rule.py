"""The table of seed 000 3.6 (REFERENCE 6)."""

import msgspec
import pytest
from tests.unit.bench.plans import catalogued, load

from headway.sim.plan_layouts import Space
from headway.sim.plan_load import load_of
from headway.sim.plan_params import PlanParams
from headway.sim.plan_rule import DIFFER, EXPERTS, LONG, MANY_HOSTS, ONE_DEVICE, ONE_HOST, Rule, rules
from headway.sim.scenario import Scenario
from headway.workload.lengths import Lengths


def found(scenario: Scenario, name: str = "") -> list[Rule]:
    assert scenario.plan is not None
    loaded = load_of(scenario)
    layouts = Space(scenario, scenario.plan, loaded, scenario.pools).layouts()
    best = next((layout for layout in layouts if layout.name == name), None)
    assert best is not None or not name
    return rules(scenario.pools[0], scenario, loaded, layouts, best)


WIDE = PlanParams(tp=(1, 2, 4, 8), pp=(1, 2), devices_max=512)


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("llama-3.1-8b", ONE_DEVICE),
        ("llama-3.1-70b", ONE_HOST),
        ("llama-3.1-405b", MANY_HOSTS),
        ("deepseek-v3", EXPERTS),
    ],
)
def test_each_model_has_its_row(model: str, row: tuple[str, str]) -> None:  # SPEC D5
    first = found(catalogued(WIDE, model=model, rate=0.5))[0]
    assert (first.condition, first.choice) == row
    assert first.agrees is None


def test_the_answer_is_held_against_the_row() -> None:
    scenario = catalogued(WIDE, rate=5.0)
    assert found(scenario, "A100-80G TP1")[0].agrees is True
    assert found(scenario, "A100-80G TP8")[0].agrees is False


def test_very_long_prompts_have_a_row_of_their_own() -> None:
    scenario = catalogued(WIDE, rate=0.01)
    workload = msgspec.structs.replace(load(0.01), prompt=Lengths("fixed", mean=60_000.0, longest=100_000))
    targets = msgspec.structs.replace(scenario.targets, ttft_ms=60_000.0)
    rows = found(msgspec.structs.replace(scenario, workload=(workload,), targets=targets))
    assert LONG in [(row.condition, row.choice) for row in rows]


def test_phases_that_differ_much_ask_for_a_search_apart() -> None:
    both = msgspec.structs.replace(WIDE, modes=("mixed", "pd"))
    scenario = catalogued(both, rate=1.0)
    answers = msgspec.structs.replace(scenario, workload=(load(1.0, prompt=200.0, output=800.0),))
    rows = found(answers, "A100-80G TP1")
    differ = next(row for row in rows if row.condition == DIFFER[0])
    assert differ.agrees is False
    apart = next(row for row in found(answers, "A100-80G P TP1 + D TP2") if row.condition == DIFFER[0])
    assert apart.agrees is True
