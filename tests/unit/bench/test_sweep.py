import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from headway.bench.scenarios import read_scenario
from headway.bench.simulated import config_hash, simulate
from headway.bench.sweep import Cell, Progress, Result, Store, Sweep, grid, run_cell
from headway.core.errors import ConfigError, InvariantError
from headway.sim.scenario import Scenario

SMALL: dict[str, object] = {"workload.count": 12, "workload.arrivals.rate_per_s": 60.0}
VARY: dict[str, list[object]] = {"pools.replicas": [1, 2], "front.router.type": ["round_robin", "least_tokens"]}


def make(changes: Mapping[str, object]) -> Scenario:
    return read_scenario(None, {**SMALL, **changes})


def refuse(cell: Cell) -> Result:
    raise AssertionError(f"{cell.changes} is run again")


GATE: list[int] = []


def held(cell: Cell) -> Result:
    return Result(cell.key, cell.changes, None, str(len(os.read(GATE[0], 1))))


def test_a_grid_is_every_combination_with_the_same_seeds() -> None:  # SPEC J5
    # Common random numbers: what differs between combinations is not their arrivals
    cells = grid(VARY, [1, 2], make)
    assert [(cell.changes["pools.replicas"], cell.changes["seed"]) for cell in cells] == [
        (1, 1), (1, 2), (1, 1), (1, 2), (2, 1), (2, 2), (2, 1), (2, 2),
    ]  # fmt: skip
    assert len({cell.key for cell in cells}) == 8


def test_results_are_those_of_a_single_simulation(tmp_path: Path) -> None:
    cells = grid({"pools.replicas": [1, 2]}, [3], make)
    (first, second) = Sweep(Store(None), 1).evaluate(cells)
    assert first.summary is not None
    assert second.summary is not None
    alone = simulate(cells[1].scenario).summary
    assert (second.summary.ttft_ms, second.summary.config_hash) == (alone.ttft_ms, alone.config_hash)
    assert first.summary.ttft_ms != second.summary.ttft_ms


def test_processes_give_what_one_process_gives() -> None:
    cells = grid(VARY, [0], make)
    alone, many = (Sweep(Store(None), processes).evaluate(cells) for processes in (1, 2))
    for one, other in zip(alone, many, strict=True):
        assert (one.key, one.changes) == (other.key, other.changes)
        assert one.summary is not None
        assert other.summary is not None
        assert (one.summary.ttft_ms, one.summary.decisions) == (other.summary.ttft_ms, other.summary.decisions)


@pytest.mark.parametrize(("processes", "replicas"), [(2, [1, 2]), (1, [1, 2]), (2, [1])])
def test_who_waits_for_a_long_run_is_called_in_between(
    processes: int, replicas: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC J5
    """The runs end only once `wait` was called, which it never would be if none could be waited for."""
    monkeypatch.setattr("headway.bench.sweep.WAIT_S", 0.01)
    reader, writer = os.pipe()
    GATE.append(reader)
    runner = Sweep(Store(None), processes, run=held)

    def wait() -> None:
        os.write(writer, b"12")

    runner.wait = wait
    results = runner.evaluate(grid({"pools.replicas": replicas}, [1], make))
    assert [result.error for result in results] == ["1" for _ in replicas]
    os.close(GATE.pop())
    os.close(writer)


def test_what_is_stored_is_not_run_again(tmp_path: Path) -> None:
    path, cells = tmp_path / "sweep.jsonl", grid({"pools.replicas": [1, 2]}, [0], make)
    first = Sweep(Store(path), 1).evaluate(cells)
    again = Sweep(Store(path), 1, run=refuse).evaluate(list(reversed(cells)))
    assert again == list(reversed(first))


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, cells = tmp_path / "sweep.jsonl", grid(VARY, [0], make)
    ran: list[str] = []

    def interrupted(cell: Cell) -> Result | InvariantError:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(cell.key)
        return run_cell(cell)

    with pytest.raises(KeyboardInterrupt):
        Sweep(Store(path), 1, run=interrupted).evaluate(cells)
    ran.clear()
    seen: list[Progress] = []
    results = Sweep(Store(path), 1, seen.append, interrupted).evaluate(cells)
    assert len(ran) == 2
    assert len(results) == 4
    assert [(at.done, at.total) for at in seen] == [(1, 2), (2, 2)]


def test_a_line_that_a_crash_cut_off_is_run_again_and_spoils_no_other(tmp_path: Path) -> None:
    path, cells = tmp_path / "sweep.jsonl", grid({"pools.replicas": [1, 2]}, [0], make)
    Sweep(Store(path), 1).evaluate(cells)
    path.write_bytes(path.read_bytes()[:-40])
    store = Store(path)
    assert list(store.results) == [cells[0].key]
    Sweep(store, 1).evaluate(cells)
    assert set(Store(path).results) == {cell.key for cell in cells}


def test_a_combination_that_cannot_run_is_a_result_and_stops_nobody(tmp_path: Path) -> None:
    cells = grid({"pools.engine.memory_share": [0.001, 0.9]}, [0], make)
    bad, good = Sweep(Store(None), 1).evaluate(cells)
    assert bad.summary is None
    assert bad.error
    assert good.summary is not None


def test_a_bug_in_one_run_is_raised_after_the_others_are_stored() -> None:
    def broken(cell: Cell) -> Result | InvariantError:
        return InvariantError("a block is held twice") if cell.changes["pools.replicas"] == 1 else run_cell(cell)

    store = Store(None)
    with pytest.raises(InvariantError, match="held twice"):
        Sweep(store, 1, run=broken).evaluate(grid({"pools.replicas": [1, 2]}, [0], make))
    assert len(store.results) == 1


def test_a_combination_that_cannot_be_built_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"with pools\.replicas=0: .*replicas"):
        grid({"pools.replicas": [1, 0]}, [0], make)


def test_a_scenario_has_one_hash_in_every_process() -> None:
    # A scenario that was pickled holds what is equal to a default, not the default itself
    here = make({})
    there = pickle.loads(pickle.dumps(here))
    assert there == here
    assert config_hash(there) == config_hash(here)
    assert config_hash(here) != config_hash(make({"seed": 1}))
