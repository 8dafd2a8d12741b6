import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = (
    "import sys, pathlib; from headway.engines.llm.kernels import load_kernels; load_kernels(pathlib.Path(sys.argv[1]))"
)
# Compiles once, whatever it is asked how often; `$9` is what follows `-o`.
COMPILER = """#!/bin/sh
echo call >> "{folder}/calls"
if [ ! -e "{folder}/built" ]; then "{real}" "$@" || exit; cp "$9" "{folder}/built"; fi
cp "{folder}/built" "$9"
"""


# SPEC E1
def test_what_one_process_compiled_the_next_one_does_not_unless_it_is_damaged(tmp_path: Path) -> None:
    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++ here")
    counting = tmp_path / "counting"
    counting.write_text(COMPILER.format(folder=tmp_path, real=real))
    counting.chmod(0o755)

    def load() -> int:
        command = [sys.executable, "-c", LOAD, str(tmp_path / "cache")]
        subprocess.run(command, check=True, env={**os.environ, "CXX": str(counting)})
        return len((tmp_path / "calls").read_text().split())

    assert [load(), load()] == [1, 1]
    (library,) = (tmp_path / "cache/kernels").glob("*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) * 9 // 10])  # would end who loads it with SIGBUS
    assert load() == 2
    assert library.read_bytes() == whole


# SPEC E1
@pytest.mark.parametrize("damage", ["none", "cut", "empty", "a bit", "zeros"])
def test_a_library_that_is_not_as_it_was_compiled_is_known(tmp_path: Path, damage: str) -> None:
    kernels = pytest.importorskip("headway.engines.llm.kernels")
    written, path = tmp_path / "cc", tmp_path / "kernels" / "k.so"
    written.write_text('#!/bin/sh\nhead -c 4096 /dev/zero | tr "\\0" x > "$9"\n')
    written.chmod(0o755)
    kernels._build(str(written), path)
    body = path.read_bytes()
    assert len(body) == 4096 + 32
    turned = bytes((body[0] ^ 1, *body[1:]))
    path.write_bytes({"none": body, "cut": body[:-9], "empty": b"", "a bit": turned, "zeros": bytes(len(body))}[damage])
    assert kernels._is_whole(path) == (damage == "none")
