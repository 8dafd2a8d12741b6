import os
import signal
import sys
from collections import Counter, deque
from pathlib import Path

import pytest
from tools import run_tests
from tools.run_tests import closing, counted, environment


def test_reads_the_closing_lines_of_pytest() -> None:
    loud = "========== 1 failed, 4331 passed, 61 deselected in 710.60s (0:11:50) ==========="
    assert counted(loud) == Counter(failed=1, passed=4331, deselected=61)
    assert counted("1755 passed in 158.01s (0:02:38)") == Counter(passed=1755)
    assert counted("tests/unit/core/test_ids.py .... [ 3%]") == Counter()


def test_closes_with_all_of_them() -> None:
    assert closing(Counter(passed=3, failed=1), 2.5) == "===== 1 failed, 3 passed in 2.50s ====="


def test_the_ring_runs_whole_under_one_hash_seed_and_its_units_under_another() -> None:
    plan = run_tests.plan(types=False)
    folders = {
        seed: [word for job in (*plan.pure, *plan.patient) if job.hash_seed == seed for word in job.command[4:]]
        for seed in (0, 1)
    }
    assert {word for word in folders[0] if word.startswith("tests/")} == set(run_tests.RING)
    assert [word for word in folders[1] if word.startswith("tests/")] == list(run_tests.UNITS)
    assert [environment(seed)["PYTHONHASHSEED"] for seed in folders] == ["0", "1"]


def test_every_folder_of_tests_is_run_by_one_job_and_the_units_of_the_ring_by_two() -> None:
    plan = run_tests.plan(types=False)
    runs = Counter[str]()
    for job in (*plan.live, *plan.pure, *plan.patient, *plan.shared):
        asked = [word for word in job.command if word.startswith("tests")]
        without = [word.removeprefix("--ignore=") for word in job.command if word.startswith("--ignore=")]
        for path in run_tests.ROOT.glob("tests/**/test_*.py"):
            name = path.relative_to(run_tests.ROOT).as_posix()
            if any(name.startswith(f"{each}/") for each in asked) and not any(
                name.startswith(f"{each}/") for each in without
            ):
                runs[name] += 1
    twice = {name for name, count in runs.items() if count == 2}
    assert set(runs) == {
        path.relative_to(run_tests.ROOT).as_posix() for path in run_tests.ROOT.glob("tests/**/test_*.py")
    }
    assert twice == {name for name in runs if name.startswith(run_tests.UNITS)}
    assert set(runs.values()) == {1, 2}


def test_the_types_are_checked_where_they_are_asked_for() -> None:
    names = [job.name for job in run_tests.plan(types=True).pure]
    assert names[: len(run_tests.TYPES)] == [" ".join(words) for words in run_tests.TYPES]
    assert not [job for job in run_tests.plan(types=False).pure if "mypy" in job.name]


def test_a_lane_that_is_through_with_its_own_jobs_takes_common_ones() -> None:
    def job(name: str, code: int = 0) -> run_tests.Job:
        return run_tests.Job(name, (sys.executable, "-c", f"print('2 passed in 0.1s'); raise SystemExit({code})"))

    shared = deque([job("common", 3), job("nothing there", run_tests.NOTHING_COLLECTED)])
    lane = run_tests.Lane([job("own")], shared)
    lane.run()
    assert (lane.codes, lane.counts, list(shared)) == ([0, 3, 0], Counter(passed=6), [])


def test_what_is_patient_has_the_lowest_priority_and_no_deadline(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    shown = "import os, hypothesis; print('priority', os.nice(0), 'deadline', hypothesis.settings().deadline)"
    job = run_tests.Job("own", (sys.executable, "-c", shown))
    before = os.nice(0)
    run_tests.Lane([job], deque(), run_tests.LOWEST).run()
    run_tests.Lane([job], deque()).run()
    said = capfd.readouterr().out
    patient, other = (line for line in said.splitlines() if line.startswith("priority"))
    assert patient == f"priority {run_tests.LOWEST} deadline None"
    assert other.startswith(f"priority {before} deadline ")


@pytest.mark.parametrize("broken", ["tests/unit/core", "tests/unit/cli"])
def test_one_failure_in_either_lane_fails_the_whole(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow', 'device', 'peer']\n")
    for folder in ("tests/unit/core", "tests/unit/cli"):
        (tmp_path / folder).mkdir(parents=True)
        claim = "False" if folder == broken else "True"
        name = folder.rpartition("/")[2]
        (tmp_path / folder / f"test_{name}.py").write_text(f"def test_it() -> None:\n    assert {claim}\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what they need a second for, in each of the processes
    assert run_tests.main([]) == 1
    out = capfd.readouterr().out
    failed = 2 if broken == "tests/unit/core" else 1  # the ring's run twice
    assert f"===== {failed} failed, {3 - failed} passed in " in out.splitlines()[-1]


def test_what_is_asked_for_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests, "command", lambda *asked: [sys.executable, "-c", f"raise SystemExit({len(asked)})"])
    assert run_tests.main(["-k", "x"]) == 2


def test_tests_can_be_interrupted_even_when_started_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "import signal; raise SystemExit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    monkeypatch.setattr(run_tests, "command", lambda *_: [sys.executable, "-c", shown])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_tests.main(["x"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
