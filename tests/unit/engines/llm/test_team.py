import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HEADERS = Path(__file__).parents[4] / "src/headway/engines/llm"
STAGES = 2000


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    built = tmp_path_factory.mktemp("team") / "stress"
    command = [compiler, "-O1", "-std=c++20", "-pthread", "-I", str(HEADERS), str(HERE / "team_stress.cpp")]
    subprocess.run([*command, "-o", str(built)], check=True)
    return built


def told(stress: Path, threads: int, left: str) -> str:
    command = [str(stress), str(threads), str(STAGES), left]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


# SPEC B7
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_every_piece_is_written_once_with_the_bits_of_one_thread(stress: Path, threads: int) -> None:
    alone = told(stress, 1, "none")
    assert ", 0 not:" in alone
    assert told(stress, threads, "none") == alone


# SPEC B7
@pytest.mark.parametrize("threads", [2, 4])
def test_the_others_go_on_without_a_thread_that_is_stuck_in_a_piece(stress: Path, threads: int) -> None:
    assert told(stress, threads, "left") == told(stress, 1, "none")
