import msgspec
import pytest
from tests.sim.systems import SMALL, linear, scenario

from headway.bench.metrics import Condition, check_metric, condition, is_less_better, metric, numbers
from headway.bench.results import Tally
from headway.bench.run_summary import Closing, PoolUse
from headway.bench.simulated import simulate
from headway.core.errors import ConfigError

SUMMARY = Tally().summary(Closing(1.0, pool_use={"chat": PoolUse(2, 4, 0.5)}))


def test_numbers_are_found_by_the_names_of_summary_json() -> None:
    assert metric(SUMMARY, "attainment") == 0.0
    assert metric(SUMMARY, "pool_use.chat.devices") == 4
    assert metric(SUMMARY, "ttft_ms.p99") is None
    assert metric(SUMMARY, "cold.ttft_ms.p99") is None
    assert dict(numbers(SUMMARY))["pool_use.chat.busy"] == 0.5


@pytest.mark.parametrize("name", ["atainment", "ttft_ms", "complete", "config_hash", "pool_use.chat.nothing"])
def test_a_name_that_no_number_has_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no number '{name}'"):
        metric(SUMMARY, name)


def test_the_nearest_names_are_told() -> None:
    with pytest.raises(ConfigError, match="did you mean attainment"):
        metric(SUMMARY, "atainment")


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("a>=0.9", 0.9, True),
        ("a>0.9", 0.9, False),
        (" a.b <= 5e2", 499.0, True),
        ("a<5", 5.0, False),
        ("a<5", None, False),
    ],
)
def test_conditions_are_read_and_judged(text: str, value: float | None, holds: bool) -> None:
    assert condition(text).holds(value) is holds


def test_a_condition_is_printed_as_it_is_written() -> None:
    assert condition("ttft_ms.p99<=500") == Condition("ttft_ms.p99", "<=", 500.0)
    assert str(condition("ttft_ms.p99<=500")) == "ttft_ms.p99<=500"


@pytest.mark.parametrize("text", ["attainment", "attainment=0.9", ">=0.9", "attainment>=", "attainment>=1.2.3"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no condition"):
        condition(text)


@pytest.mark.parametrize("name", ["ttft_ms.p99", "errors.queue_full", "pool_use.chat.cost_usd"])
def test_times_failures_and_costs_are_better_when_less(name: str) -> None:
    assert is_less_better(name)


@pytest.mark.parametrize("name", ["goodput_per_s", "attainment", "pools.chat.goodput_per_s"])
def test_other_numbers_are_better_when_more(name: str) -> None:
    assert not is_less_better(name)


SCENARIO = scenario(linear(name="chat"), workload=(msgspec.structs.replace(SMALL, name="talk"),))


@pytest.mark.parametrize("name", ["atainment", "ttft_ms", "complete", "config_hash", "ttft_ms.p95.x", "cold.nothing"])
def test_a_name_that_no_run_can_have_is_refused_without_a_run(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no number '{name}'; did you mean"):
        check_metric(SCENARIO, name)


def test_workloads_and_pools_are_those_of_the_scenario() -> None:
    with pytest.raises(ConfigError, match="workloads has no 'tall'; did you mean talk"):
        check_metric(SCENARIO, "workloads.tall.attainment")
    with pytest.raises(ConfigError, match="pool_use has no 'x'; there is chat"):
        check_metric(SCENARIO, "pool_use.x.busy")


def test_every_number_of_a_run_passes() -> None:
    summary = simulate(SCENARIO).summary
    found = [name for name, _ in numbers(summary) if name != "cold"]  # a group that this run has not got
    assert {"workloads.talk.ttft_ms.p50", "pool_use.chat.counters.steps"} <= {*found}
    for name in [*found, "cold.ttft_ms.p50"]:
        check_metric(SCENARIO, name)
