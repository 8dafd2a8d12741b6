"""Freed memory stays in the process: counts of page faults, each in a process of its own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.engines.diffusion import allocator, loading

# Four blocks that are alive together, as in a pass; faults of four passes once the first four are over.
PASSES = """
import resource
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for count in range(8):
    before = before if count > 4 else faults()
    kept = [bytearray(24 << 20) for _ in range(4)]
    del kept
print(faults() - before)
"""
PAGES = 4 * 4 * (24 << 20) >> 12


def faults(first: str = "") -> int:
    """Page faults of the passes after some first words."""
    done = subprocess.run([sys.executable, "-c", first + PASSES], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_what_a_pass_frees_the_next_one_takes_without_page_faults() -> None:  # SPEC F4
    assert faults() > PAGES / 2  # as it is by default: what this test can see
    assert faults(f"{Path(allocator.__file__).read_text()}\nassert keep_freed_memory()\n") < PAGES / 20


def test_a_pipeline_on_the_cpu_keeps_freed_memory(  # SPEC F4
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(loading, "keep_freed_memory", lambda: asked.append(True))
    loading.load(loading.LoadSettings(saved("flux"), device="cpu"))
    assert asked == [True]
