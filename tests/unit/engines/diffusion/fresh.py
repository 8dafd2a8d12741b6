"""Runs scripts in processes that have imported the engine and done nothing else.

They are forks of one interpreter: to import torch and diffusers takes 6 CPU seconds, and nothing was computed or loaded
before a fork.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

FORKING: Final = """
import io, os, sys, traceback
import msgspec
import headway.engines.diffusion.engine, headway.engines.diffusion.ip_adapter
while size := int.from_bytes(sys.stdin.buffer.read(8), "big"):
    script, words, given = msgspec.msgpack.decode(sys.stdin.buffer.read(size), type=tuple[str, list[str], bytes])
    answer, there = os.pipe()
    child = os.fork()
    if not child:
        try:
            sys.argv, sys.stdin, sys.stdout = ["-c", *words], io.TextIOWrapper(io.BytesIO(given)), open(there, "w")
            exec(script, {"__name__": "__main__"})
            sys.stdout.close()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(there)
    with open(answer, "rb") as pipe:
        made = pipe.read()
    said = msgspec.msgpack.encode((os.waitpid(child, 0)[1], made))
    sys.stdout.buffer.write(len(said).to_bytes(8, "big") + said)
    sys.stdout.buffer.flush()
"""


class Fresh:
    """One interpreter that forks."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, script: str, *words: str, given: bytes) -> bytes:
        """What the script prints, with `given` on its standard input."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        order = msgspec.msgpack.encode((script, words, given))
        process.stdin.write(len(order).to_bytes(8, "big") + order)
        process.stdin.flush()
        size = int.from_bytes(process.stdout.read(8), "big")
        code, made = msgspec.msgpack.decode(process.stdout.read(size), type=tuple[int, bytes])
        assert code == 0, "the script failed; its traceback is on standard error"
        return made


@contextmanager
def forking() -> Iterator[Fresh]:
    """Start the interpreter, and end it."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Fresh(process)
