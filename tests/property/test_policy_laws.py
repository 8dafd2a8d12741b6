"""Laws that every registered policy of every slice obeys (ARCHITECTURE, rules 2 and 7). Policies are discovered.

A slice with policies brings `tests/property/laws/<slice>.py` (or `<slice>_<kind>.py`) with `scene(name, rng, shuffle)`;
`laws/law.py` says what a scene is. A slice without one fails here, so no policy escapes.
"""

import hashlib
import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from random import Random

import pytest
from tests.property.laws.law import Scene

import headway.sched
from headway.sched.registry import PolicyClass, discover

SCENES = 12


def packages() -> list[tuple[str, str]]:
    """(law module, package) of every package of policies: `policies` itself, or its sub-packages."""
    found = []
    for info in pkgutil.iter_modules(headway.sched.__path__):
        name = f"headway.sched.{info.name}.policies"
        if not info.ispkg or find_spec(name) is None:
            continue
        module = import_module(name)
        below = [sub.name for sub in pkgutil.iter_modules(module.__path__) if sub.ispkg]
        found += [(f"{info.name}_{sub}", f"{name}.{sub}") for sub in below] or [(info.name, name)]
    return found


def policies() -> list[tuple[str, str, type[PolicyClass]]]:
    """(law module, policy name, class) of everything registered."""
    return [(law, name, cls) for law, package in packages() for name, cls in discover(package).items()]


POLICIES = policies()
IDS = [f"{law}-{name}" for law, name, _cls in POLICIES]
every_policy = pytest.mark.parametrize(("law", "name", "cls"), POLICIES, ids=IDS)


def scenes(law: str, name: str, count: int = SCENES) -> list[Scene]:
    """Fresh scenes of a policy; the same seed gives the same scene."""
    make = import_module(f"tests.property.laws.{law}").scene
    return [make(name, Random(f"{law}-{name}-{seed}")) for seed in range(count)]


def test_the_suite_sees_policies_of_the_llm_slice() -> None:
    assert {law for law, _name, _cls in POLICIES} >= {"llm_order", "llm_chunk"}
    assert len(POLICIES) >= 9


@every_policy
def test_it_says_what_it_sees_and_what_it_misses(law: str, name: str, cls: type[PolicyClass]) -> None:
    assert all(text.strip() for text in (cls.sees, cls.good_at, cls.blind_spot))
    config = cls.Params.__struct_config__
    assert config.frozen
    assert config.forbid_unknown_fields


# SPEC B3; dynamo PR#9688: who is closed is no candidate, and no policy looks further, whatever it goes by
@every_policy
def test_it_picks_a_candidate(law: str, name: str, cls: type[PolicyClass]) -> None:
    for scene in scenes(law, name):
        assert scene.allowed(scene.query()), scene


@every_policy
def test_asking_again_gives_the_same_answer(law: str, name: str, cls: type[PolicyClass]) -> None:
    for scene in scenes(law, name):
        assert scene.query() == scene.query()


@every_policy
def test_asking_writes_nothing(law: str, name: str, cls: type[PolicyClass]) -> None:
    for scene in scenes(law, name):
        before = scene.state()
        scene.query()
        assert scene.state() == before


@every_policy
def test_the_order_in_which_candidates_came_is_no_matter(law: str, name: str, cls: type[PolicyClass]) -> None:
    make = import_module(f"tests.property.laws.{law}").scene
    for seed in range(SCENES):
        answers = {repr(make(name, Random(f"{law}-{name}-{seed}"), shuffle=shuffle).query()) for shuffle in range(4)}
        assert len(answers) == 1, answers


@every_policy
def test_it_loses_no_request(law: str, name: str, cls: type[PolicyClass]) -> None:
    for scene in scenes(law, name, 6):
        scene.conserves()


def digest() -> str:
    """Every answer of every policy in every scene."""
    out = hashlib.blake2b()
    for law, name, _cls in POLICIES:
        for scene in scenes(law, name):
            out.update(repr((law, name, scene.query())).encode())
    return out.hexdigest()


def test_answers_are_stable_over_hash_seeds() -> None:
    code = "from tests.property.test_policy_laws import digest; print(digest())"
    answers = set()
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["src", "."])}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        answers.add(run.stdout.strip())
    assert len(answers) == 1
