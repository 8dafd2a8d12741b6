"""The engine on a device that does its work as late as events let it, or as early (SPEC E1, E2)."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.engines.llm.late_device import LateDevice
from tests.unit.engines.llm.step_world import GRAPH_ROWS, StepWorld, Text, texts
from tests.unit.engines.llm.stream_device import StreamDevice

from headway.engines.llm import device_engine
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.loading import EngineSettings

TURNS = 16
SEEDS = 10
LEASES = "headway.engines.llm.leases"
STAGING = "headway.engines.llm.staging"
Play = Callable[[int], StepWorld]


@pytest.fixture(scope="module")
def settings(tiny_folder: Path, kernel_cache: Path) -> EngineSettings:
    return EngineSettings(
        folder=tiny_folder,
        model="tiny",
        cache=kernel_cache,
        kv_blocks=64,
        block_size=8,
        dtype="float32",
        max_model_len=32,
        max_step_tokens=64,
        graph_rows=(GRAPH_ROWS,),
    )


@pytest.fixture(scope="module")
def known(settings: EngineSettings) -> list[Text]:
    return texts(DeviceLlmEngine(settings, LateDevice()))


@pytest.fixture
def play(settings: EngineSettings, known: list[Text]) -> Play:
    def played(seed: int) -> StepWorld:
        device = StreamDevice(seed)
        with device.mode():
            world = StepWorld(DeviceLlmEngine(settings, device), device, known, seed)
            world.play(TURNS)
        return world

    return played


# SPEC E1, E2
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_token_is_right_and_everything_lent_returns(play: Play, seed: int) -> None:
    world = play(seed)
    assert world.leases.free == world.leases.all > 0


def source(name: str) -> str:
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text()


def broken(name: str, text: str) -> ModuleType:
    made = ModuleType(name)
    exec(compile(text, name, "exec"), made.__dict__)
    return made


def is_noticed(play: Play) -> bool:
    for seed in range(SEEDS):
        try:
            play(seed)
        except Exception:  # whatever went wrong, it was not silent
            return True
    return False


def orders() -> list[tuple[int, str]]:
    """Every line of `leases` that orders a lane or the host behind a lane."""
    pattern = re.compile(r"^ +\S+\.(record|hold|wait)\(.*\)( +#.*)?$")
    return [(number, line.strip()) for number, line in enumerate(source(LEASES).splitlines()) if pattern.match(line)]


# SPEC E2
@pytest.mark.parametrize(("number", "line"), orders())
def test_no_event_and_no_wait_can_be_left_out(
    play: Play, monkeypatch: pytest.MonkeyPatch, number: int, line: str
) -> None:
    lines = source(LEASES).splitlines()
    lines[number] = lines[number].replace(line, "pass")
    monkeypatch.setattr(device_engine, "LeasePool", broken(LEASES, "\n".join(lines)).LeasePool)
    assert is_noticed(play), line


CHANGES = {
    "inputs are computed with before they were sent": (STAGING, "self._begun.arrive()\n        for", "for"),
    "uploads are computed with before they were sent": (
        STAGING,
        "        self._begun.arrive()\n        return",
        "        return",
    ),
    "a copy from the host writes what earlier steps read": (
        STAGING,
        "            target.copy_(source)\n",
        '            self._device.copy(target, source, "copy_in")\n        self._begun.arrive()\n',
    ),
    "results are on their way before they are computed": (
        LEASES,
        '            out.copy_(tensor)\n            slot.computed.record("compute")\n',
        '            slot.computed.record("compute")\n            out.copy_(tensor)\n',
    ),
    "a lease is not given back": (LEASES, "            self._give_back(self.name, self._slot)\n", ""),
}


# SPEC E2
@pytest.mark.parametrize("claim", CHANGES)
def test_a_broken_order_gives_wrong_tokens(play: Play, monkeypatch: pytest.MonkeyPatch, claim: str) -> None:
    name, old, new = CHANGES[claim]
    text = source(name)
    assert text.count(old) == 1
    module: Any = broken(name, text.replace(old, new))
    kind = "LeasePool" if name == LEASES else "Staging"
    monkeypatch.setattr(device_engine, kind, getattr(module, kind))
    assert is_noticed(play)
