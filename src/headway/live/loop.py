"""Runs a coroutine as a process's whole life, on uvloop where it is installed."""

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def run_loop(main: Coroutine[None, None, T]) -> T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:  # it does not exist for Windows
        return None
    import uvloop

    new: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return new
