"""Names say something, types are told, errors are not swallowed, policies have one file and one test each."""

from pathlib import Path

import pytest
from tests.arch.rules import (
    BANNED_MODULE_NAMES,
    ROOT,
    SOURCE,
    Rule,
    banned_names,
    broad_excepts,
    modules,
    offences,
    policy_file_offences,
    shown,
    sleeps,
    unexplained_escapes,
)

# Outer loops of drivers: what a node, an engine or a peer throws is reported there, and the loop decides what goes on.
DRIVER_LOOPS = frozenset(
    {
        "src/headway/engines/diffusion/faults.py",  # of the rows of a plan
        "src/headway/engines/diffusion/stage_host.py",
        "src/headway/live/driver.py",
        "src/headway/live/engine_thread.py",
        "src/headway/live/front_host.py",
        "src/headway/live/jobs_table.py",  # of what is run in its thread: who asked gets the error
        "src/headway/live/link.py",  # of what a peer sends: who awaits its end gets the error
        "src/headway/live/replica_host.py",
        "src/headway/live/streams.py",  # of tokens that are taken at once: the reader gets it, as if it had taken them
        "src/headway/live/supervisor.py",
        "src/headway/live/upstream_fleet.py",
        "src/headway/live/upstream_watch.py",
    }
)


def policy_files() -> list[Path]:
    found = sorted((SOURCE / "sched").rglob("policies/**/*.py"))
    return [path for path in found if not path.name.startswith("_")]


@pytest.mark.parametrize("rule", [banned_names, unexplained_escapes], ids=lambda rule: rule.__name__)
def test_source_obeys(rule: Rule) -> None:
    assert offences(modules(), rule) == []


def test_modules_are_named_for_what_they_do() -> None:
    assert [shown(path) for path in modules() if path.stem in BANNED_MODULE_NAMES] == []


def test_only_driver_loops_catch_everything() -> None:
    found = {shown(path) for path in modules() if list(broad_excepts(path.read_text()))}
    assert found == DRIVER_LOOPS


def test_a_policy_is_one_file_with_one_public_class() -> None:
    found = {shown(path): list(policy_file_offences(path.stem, path.read_text())) for path in policy_files()}
    assert {place: lines for place, lines in found.items() if lines} == {}


def test_every_policy_has_a_unit_test_file() -> None:
    missing = []
    for path in policy_files():
        mirror = ROOT / "tests/unit" / path.relative_to(SOURCE).with_name(f"test_{path.name}")
        if not mirror.is_file():
            missing.append(shown(mirror))
    assert missing == []


def test_ring_tests_do_not_wait() -> None:
    places = [ROOT / "tests" / kind for kind in ("unit", "property", "sim")]
    assert offences([path for place in places for path in sorted(place.rglob("*.py"))], sleeps) == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (banned_names, "class RequestManager: ..."),
        (banned_names, "class BaseEngine: ..."),
        (banned_names, "class ModelInfo: ..."),
        (broad_excepts, "try:\n    f()\nexcept Exception:\n    pass"),
        (broad_excepts, "try:\n    f()\nexcept (ValueError, Exception):\n    pass"),
        (broad_excepts, "try:\n    f()\nexcept:\n    pass"),
        (unexplained_escapes, "def f(x: Any) -> None: ..."),
        (unexplained_escapes, "y = cast(int, x)"),
        (unexplained_escapes, "def f(x: dict[str, typing.Any]) -> None: ..."),
        (unexplained_escapes, "f(1)  # type: ignore[arg-type]"),
        (unexplained_escapes, "f(1)  # type: ignore"),
        (unexplained_escapes, "f(1)  # type: ignore[arg-type]  # noqa: E501"),
        (sleeps, "import time\ntime.sleep(0.1)"),
        (sleeps, "async def f():\n    await asyncio.sleep(0.1)"),
    ],
)
def test_rule_bites(rule: Rule, source: str) -> None:
    assert list(rule(source)) != []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (banned_names, "class Scheduler: ...\nclass Baseline: ..."),
        (broad_excepts, "try:\n    f()\nexcept ValueError:\n    pass"),
        (unexplained_escapes, "from typing import Any\ndef f(x: Any) -> None: ...  # the library has no types"),
        (unexplained_escapes, "f(1)  # type: ignore[arg-type]  # the stub lacks the overload"),
        (sleeps, "async def f():\n    await asyncio.sleep(0)"),
    ],
)
def test_rule_lets_clean_code_pass(rule: Rule, source: str) -> None:
    assert list(rule(source)) == []


POLICY = """
class LeastSlack:
    needs: ClassVar[frozenset[str]] = frozenset()

    class Params(msgspec.Struct): ...


class _Row: ...
"""


@pytest.mark.parametrize(
    ("stem", "source"),
    [
        ("least_work", POLICY),
        ("least_slack", POLICY + "\nclass Other: ...\n"),
        ("least_slack", POLICY.replace("Params", "Options")),
        ("least_slack", POLICY.replace("needs", "wants")),
        ("least_slack", "def pick(): ..."),
    ],
)
def test_policy_rule_bites(stem: str, source: str) -> None:
    assert len(list(policy_file_offences(stem, source))) == 1


def test_policy_rule_accepts_a_policy() -> None:
    assert list(policy_file_offences("least_slack", POLICY)) == []
