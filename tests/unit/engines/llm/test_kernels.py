import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = (
    "import sys, pathlib; from headway.engines.llm.kernels import load_kernels; load_kernels(pathlib.Path(sys.argv[1]))"
)


# SPEC E1
def test_what_one_process_compiled_the_next_one_does_not(tmp_path: Path) -> None:
    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++ here")
    calls, counting = tmp_path / "calls", tmp_path / "counting"
    counting.write_text(f'#!/bin/sh\necho call >> "{calls}"\nexec "{real}" "$@"\n')
    counting.chmod(0o755)
    for _ in range(2):
        command = [sys.executable, "-c", LOAD, str(tmp_path / "cache")]
        subprocess.run(command, check=True, env={**os.environ, "CXX": str(counting)})
    assert calls.read_text().split() == ["call"]
