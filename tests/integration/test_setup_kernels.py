"""Set-up compiles the engine's kernels, and goes on where it cannot."""

import sys
from pathlib import Path

import pytest
from tools.setup_env import prepare_kernels

pytest.importorskip("torch")


def test_without_a_working_compiler_set_up_goes_on_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    prepare_kernels(sys.executable, tmp_path / "log")
    assert "no C++ kernels: /bin/false failed" in (tmp_path / "log").read_text()
