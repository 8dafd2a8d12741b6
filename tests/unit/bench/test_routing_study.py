from pathlib import Path

import pytest

from headway.bench import routing_study
from headway.bench.routing import RoutingSummary
from headway.bench.routing_study import Job, Result, Runner, Store, knee
from headway.bench.summary import Quantiles
from headway.core.errors import ConfigError
from headway.sim.routing_fleet import Choice, Setup

HEAD = Path(__file__).parents[2] / "sim/mooncake_head.jsonl"


def job(seed: int = 0, router: str = "least_tokens", **params: object) -> Job:
    setup = Setup("uniform", 2, Choice(router, params), Choice("open"))
    return Job("routing", "exact", setup, 1.0, 20_000.0, seed)


def summary(attainment: float = 0.9, offered: int = 100) -> RoutingSummary:
    none = Quantiles(0)
    return RoutingSummary(
        offered, 5.0, 5.0 * attainment, attainment, attainment, none, none, none, 0.1, 1.0, 1.0, 0, 0, 0.0, 0, 0.5
    )


def test_a_seed_is_another_slice_with_other_times() -> None:
    one, two = job(seed=1).part(12_031), job(seed=2).part(12_031)
    assert one.skip != two.skip
    assert one.seed != two.seed
    assert one.prompt_tokens_per_s == two.prompt_tokens_per_s == 40_000.0


def test_results_survive_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    store = Store(path)
    store.add(Result(job(1), summary(), 1.0))
    store.add(Result(job(2), summary(), 1.0))
    path.write_bytes(path.read_bytes()[:-20])
    assert [result.job for result in Store(path).results.values()] == [job(1)]


def test_what_is_stored_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Job] = []

    def execute(path: Path, wanted: Job) -> Result:
        ran.append(wanted)
        return Result(wanted, summary(), 0.0)

    monkeypatch.setattr(routing_study, "execute", execute)
    said: list[str] = []
    store = Store(tmp_path / "runs.jsonl")
    store.add(Result(job(1), summary(0.4), 1.0))
    results = Runner(HEAD, store, 1, said.append).run([job(2), job(1), job(2)])
    assert ran == [job(2)]
    assert [result.summary.attainment for result in results] == [0.9, 0.4, 0.9]
    assert len(said) == 1


def test_other_parameters_are_another_run() -> None:
    assert job(kv=0.1).key != job(kv=0.2).key
    assert job(kv=0.1).key == job(kv=0.1).key


def test_the_knee_is_where_attainment_falls_through_its_limit() -> None:
    assert knee([(3.0, 0.5), (1.0, 1.0), (2.0, 0.9)]) == 2.0
    assert knee([(1.0, 1.0), (2.0, 0.8)]) == pytest.approx(1.5)
    with pytest.raises(ConfigError, match="does not fall"):
        knee([(1.0, 1.0), (2.0, 0.95)])
