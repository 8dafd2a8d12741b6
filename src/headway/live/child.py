"""Both ends of a child process's start: the order on its stdin, which then stays open, and its end with its parent."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Final

import headway
from headway.adapters.telemetry.logs import TextLines
from headway.core.errors import ConfigError
from headway.live.loop import run_loop

EXIT_ORPHAN: Final = 75
_LOG: Final = "%(levelname)s %(name)s: %(message)s"
_LEVELS: Final = {name: getattr(logging, name) for name in ("WARNING", "ERROR", "CRITICAL")}


# In the parent


async def start(module: str) -> asyncio.subprocess.Process:
    """Start a module that waits for its order."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=_child_environment(),
    )


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[tuple[int, str]]:
    """What a child prints, line by line, each with the level that its log gave it; other words are INFO."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the reader's buffer, which is dropped then
            line = b"(a line too long to show)"
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        yield _LEVELS.get(text.partition(" ")[0], logging.INFO), text


def hand_over(process: asyncio.subprocess.Process, order: bytes) -> None:
    """The start order goes over stdin, which stays open: its end tells the child that this process died."""
    if process.stdin is None:
        raise ConfigError("the child process has no stdin")
    process.stdin.write(len(order).to_bytes(4, "big") + order)


def _child_environment() -> dict[str, str]:
    """The child imports this very package, however the parent came to import it."""
    home = str(Path(headway.__file__).parent.parent)
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != home]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, *others])}


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal it, if it still runs."""
    if process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:  # it ended between the check and the signal
            return


def exit_words(code: int) -> str:
    """How it ended, for people."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


# In the child


def read_order() -> bytes:
    """Prepare the process, and return its order. SIGINT is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = logging.StreamHandler()
    output.setFormatter(TextLines(_LOG))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    length = int.from_bytes(sys.stdin.buffer.read(4), "big")
    return sys.stdin.buffer.read(length)


def run_to_end(main: Coroutine[None, None, int]) -> None:
    """Run it, and end the process with its code; the end of the parent ends it at once."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    code = run_loop(main)
    sys.stdout.flush()
    # A thread may be inside a step; a normal exit would wait for it or tear the library down under it.
    os._exit(code)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(EXIT_ORPHAN)


def error_in(context: Mapping[str, object]) -> BaseException:
    """What a loop's exception handler was called with."""
    found = context.get("exception")
    return found if isinstance(found, BaseException) else RuntimeError(str(context.get("message")))
