"""RESULTS.md or a page in docs has the figures of every benchmark: a section that is cut off by mistake is missed."""

from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
CHILDREN: Final = {
    "gateway_backend",
    "gateway_client",
    "llm_engine_child",
    "scheduler_ours",
    "scheduler_vllm",
    "truth_canary",
}
BENCHMARKS: Final = sorted(
    path.name
    for path in (ROOT / "benchmarks").glob("*.py")
    if "__main__" in path.read_text() and path.stem not in CHILDREN
)
PAGES: Final = "\n".join(
    path.read_text() for path in (ROOT / "benchmarks/RESULTS.md", *sorted((ROOT / "docs").glob("*.md")))
)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_figures_of_a_benchmark_are_written_down(name: str) -> None:
    assert f"benchmarks/{name}" in PAGES


def test_what_is_started_by_a_benchmark_is_there() -> None:
    assert {name for name in CHILDREN if not (ROOT / "benchmarks" / f"{name}.py").is_file()} == set()
