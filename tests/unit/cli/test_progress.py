import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.bench.simulated import Progress, expected
from headway.cli.ending import EXIT_INTERRUPTED, EXIT_TERMINATED
from headway.cli.progress import Interrupt, line, watching
from headway.sim.scenario import Scenario
from headway.workload.spec import Diffusion, Sessions, Synthetic

AT = Progress(virtual_s=120.0, wall_s=2.0, arrived=50, done=40, until_s=None)
ENDLESS = ["simulate", "--requests", "1000000000", "--rate", "50", "--progress"]


def test_both_times_and_what_is_done_are_shown() -> None:
    assert line(AT) == "120.0 s simulated in 2.0 s (60 x), 40 of 50 requests done"


def test_how_far_it_is_names_what_is_to_come() -> None:  # SPEC J5
    told = line(Progress(virtual_s=12.0, wall_s=120.0, arrived=900, done=800, until_s=30.0, requests=3000))
    assert told == "12.0 s of 30 s simulated in 120.0 s (0.1 x), 800 of 3000 requests done, 100 under way"


def test_a_workload_says_how_many_come_where_it_knows() -> None:
    assert expected(Scenario(workload=(Synthetic(count=7), Diffusion(count=3)))) == 10
    assert expected(Scenario(workload=(Synthetic(count=7), Sessions(count=3)))) is None


def test_without_a_terminal_a_line_comes_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:  # SPEC J5
    clock = iter([5.0, 5.0, 14.9, 15.0, 15.1, 24.9, 40.0, 49.9, 50.0])
    with watching(None, Interrupt(), lambda: next(clock)) as watch:
        assert all(watch(AT) for _ in range(8))
    told = capsys.readouterr()
    assert (told.out, told.err.count("40 of 50")) == ("", 3)


def test_what_is_asked_for_comes_at_once_and_what_is_not_wanted_never(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(True, Interrupt(), lambda: 0.0) as watch:
        assert watch(AT)
    assert "40 of 50" in capsys.readouterr().err
    now_s = 0.0
    with watching(False, Interrupt(), lambda: now_s) as watch:
        now_s = 99.0
        assert watch(AT)
    assert capsys.readouterr().err == ""


def test_an_interrupt_stops_at_the_next_look_and_the_second_one_at_once() -> None:
    with watching(False, Interrupt()) as watch:
        os.kill(os.getpid(), signal.SIGINT)
        assert not watch(AT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_keeps_the_signals_of_its_caller() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with watching(False, Interrupt()):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGTERM, EXIT_TERMINATED)])
def test_a_signal_leaves_a_result_that_can_be_read(tmp_path: Path, number: int, code: int) -> None:  # SPEC J5
    """A real process: it is interrupted once it has told that requests are done."""
    program = "from headway.cli import main; main()"
    words = [sys.executable, "-c", program, *ENDLESS, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for told in process.stderr:
            if "requests done" in told and ", 0 of" not in told:
                break
        process.send_signal(number)
        shown, rest = process.communicate(timeout=60)
    assert process.returncode == code, rest
    assert "interrupted" in shown
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["completed"] > 0
    assert summary["sent"] == summary["completed"] + summary["unfinished"]
    assert (tmp_path / "run" / "decisions.jsonl").read_text().count("\n") > 0
