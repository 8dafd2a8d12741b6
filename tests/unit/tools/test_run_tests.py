import signal
import sys
from collections import Counter
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


def test_the_two_runs_of_the_ring_differ_in_their_hash_seed() -> None:
    assert [environment(seed)["PYTHONHASHSEED"] for seed in (1, 0)] == ["1", "0"]


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
