import asyncio
import importlib.util

import pytest

from headway.live.loop import run_loop


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")
def test_a_process_runs_on_uvloop_where_it_is() -> None:
    assert run_loop(loop_module()) == "uvloop"


def test_without_uvloop_it_runs_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run_loop(loop_module()).startswith("asyncio.")
