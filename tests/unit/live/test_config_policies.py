from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.live.config import Config, Host, layers, resolve
from headway.live.config_layers import leaves
from headway.live.config_policies import POLICIES, choice_at
from headway.sched.registry import discover

HOST = Host(cores=8)


def refused(folder: Path, text: str) -> str:
    file = folder / "a.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(layers(file, {}, []), HOST)
    return str(caught.value)


def test_every_policy_of_the_tree_has_its_package() -> None:
    assert {key.removesuffix(".type") for key, _ in leaves(Config()) if key.endswith(".type")} == set(POLICIES)


@pytest.mark.parametrize("key", POLICIES)
def test_every_default_is_a_policy(key: str) -> None:
    assert choice_at(Config(), key).type in discover(POLICIES[key])


# SPEC M1
@pytest.mark.parametrize("key", POLICIES)
def test_an_unknown_policy_names_file_key_and_known_ones(key: str, tmp_path: Path) -> None:
    section, _, name = key.rpartition(".")
    message = refused(tmp_path, f'[{section}]\n{name} = {{ type = "xyzzy" }}\n')
    assert message.startswith(f"{tmp_path / 'a.toml'}: {key}.type is 'xyzzy'; known are ")
    assert all(policy in message for policy in discover(POLICIES[key]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('order = { type = "priorty" }', "did you mean 'priority'?"),
        ('order = { type = "priority", params = { age = 3 } }', "did you mean `scheduler.order.params.age_ms`?"),
        ('chunk = { type = "constant", params = { tokens = 0 } }', "`scheduler.chunk.params.tokens` of 'constant'"),
        ('chunk = { type = "dynamic", params = { tokens = 3 } }', "tokens_min = 64 is above tokens = 3"),
    ],
)
def test_what_a_policy_does_not_take_is_refused_before_anything_runs(text: str, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, f"[scheduler]\n{text}\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('router = { type = "xyzzy" }', "front.routes.m.router.type is 'xyzzy'; known are "),
        ('router = { type = "round_robin", params = { n = 1 } }', "front.routes.m.router.params.n"),
        ('router = { type = "power_of_two", params = { seed = -1 } }', "`front.routes.m.router.params.seed` of"),
        ('admission = { type = "xyzzy" }', "front.routes.m.admission.type is 'xyzzy'; known are "),
        (
            'admission = { type = "bounded", params = { queue_max = -1 } }',
            "front.routes.m.admission.params.queue_max",
        ),
    ],
)
def test_a_policy_that_one_model_has_of_its_own_is_checked_like_that_of_all(
    given: str, said: str, tmp_path: Path
) -> None:
    message = refused(tmp_path, f"[front.routes.m]\n{given}\n")
    assert said in message
    assert str(tmp_path / "a.toml") in message
