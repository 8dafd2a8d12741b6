"""Ctrl-C on a sweep in processes, as a terminal sends it, to the whole group; and SIGTERM, as a job system does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = """
[[workload]]
kind = "synthetic"
count = 30
arrivals = {kind = "poisson", rate_per_s = 30.0}
"""
MAIN = "from headway.cli import main; main()"


def start(tmp_path: Path) -> "subprocess.Popen[str]":
    (tmp_path / "s.toml").write_text(SCENARIO)
    options = [
        "--vary",
        "pools.replicas=1,2,3,4",
        "--processes",
        "2",
        "--results",
        str(tmp_path / "r.jsonl"),
        "--json",
    ]
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "sweep", str(tmp_path / "s.toml"), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_has_ended_is_kept_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:  # SPEC J5
    first = start(tmp_path)
    assert first.stderr is not None
    line = first.stderr.readline()
    if number == signal.SIGINT:
        os.killpg(first.pid, number)
    else:
        first.send_signal(number)
    _, said = first.communicate(timeout=60)
    assert line.startswith("1 of 4"), line + said
    assert first.returncode == code, said
    assert "Traceback" not in said
    kept = len((tmp_path / "r.jsonl").read_text().splitlines())
    assert 1 <= kept < 4

    again = start(tmp_path)
    out, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert said.splitlines()[0].startswith(f"1 of {4 - kept}")
    assert len(json.loads(out)["rows"]) == 4
