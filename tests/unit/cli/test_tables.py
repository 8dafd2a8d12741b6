"""Every listing, piped with COLUMNS=80: whole lines, nothing cut."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.tables import table_text

ROWS = [("name", "score s", "why"), ("rep-0", "1.25", "it has room"), ("rep-1", "-", "")]


def test_a_table_that_fits_has_a_line_per_row_with_numbers_to_the_right() -> None:
    assert table_text(ROWS, [1], 80).splitlines() == [
        "name   score s  why",
        "rep-0     1.25  it has room",
        "rep-1        -",
    ]


def test_a_narrower_terminal_gets_a_block_per_row_and_a_pipe_never_does() -> None:
    blocks = table_text(ROWS, [1], 20)
    assert blocks.split("\n\n") == [
        "name     rep-0\nscore s  1.25\nwhy      it has room",
        "name     rep-1\nscore s  -",
    ]
    assert len(table_text(ROWS, [1], None).splitlines()) == len(ROWS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("runs") / f"a run with a rather long name, number {n}" for n in (1, 2)]
    for seed, folder in enumerate(folders):
        assert piped("simulate", "--requests", "5", "--seed", str(seed), "--out", str(folder)).returncode == 0
    return folders


def piped(*words: str) -> subprocess.CompletedProcess[str]:
    program = "from headway.cli import main; main()"
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    "words",
    [
        ("policies",),
        ("models",),
        ("models", "--catalogue"),
        ("models", "--devices"),
        ("config", "show"),
        ("simulate", "--requests", "5"),
        ("sweep", "--set", "workload.count=5", "--vary", "pools.replicas=1,2", "--processes", "1"),
    ],
)
def test_a_listing_that_is_piped_is_whole(words: tuple[str, ...]) -> None:  # SPEC J5
    done = piped(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "…" not in done.stdout


def test_a_comparison_that_is_piped_is_whole(runs: list[Path]) -> None:
    done = piped("compare", *map(str, runs))
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    assert "ttft" in done.stdout.lower()
