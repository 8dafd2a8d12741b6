"""Who serves what under which name: contradictions are refused by both keys (SPEC A6, M1)."""

from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.live.config import Host, Resolved, resolve, set_layer

HOST = Host(cores=4)
ONE = "upstreams=[{name='one', url='http://a:1', models={m='m'}}]"
OPEN = "upstreams=[{name='one', url='http://a:1'}]"


def given(*assignments: str) -> Resolved:
    return resolve([set_layer(assignment) for assignment in assignments], HOST)


def test_without_upstreams_the_default_model_is_served() -> None:
    assert given().config.model.replicas == 1


@pytest.mark.parametrize("upstreams", [ONE, OPEN, "discovery.file='FOLDER/up.toml'"])
def test_upstreams_without_a_model_start_no_engine_and_this_is_told(upstreams: str, tmp_path: Path) -> None:
    (tmp_path / "up.toml").write_text("upstreams = []\n")
    resolved = given(upstreams.replace("FOLDER", str(tmp_path)))
    assert resolved.config.model.replicas == 0
    assert [a.value for a in resolved.adjustments if a.key == "model.replicas"] == [0]


def test_a_model_that_is_given_is_served_beside_upstreams() -> None:
    resolved = given(ONE, "engine.kind=synthetic", "model.replicas=2")
    assert resolved.config.model.replicas == 2


def test_settings_of_engines_that_are_not_there_are_told() -> None:
    keys = [a.key for a in given(ONE, "engine.kind=synthetic").adjustments]
    assert "engine.kind" in keys


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["model.replicas=0"], "model.replicas = 0 without upstreams, discovery.file or diffusion"),
        (["models=[{name='a'}]", "model.replicas=1"], "model.replicas and models are both given"),
        (["models=[{served_name='a', replicas=0}]"], "models[0].replicas = 0"),
        (
            ["engine.kind=synthetic", "models=[{served_name='a'}, {served_name='a'}]"],
            "models[0] and models[1] are both called 'a'",
        ),
        (
            ["engine.kind=synthetic", ONE, "model.served_name=m"],
            "model and upstreams[0].models.m are both called 'm'",
        ),
        ([ONE, "aliases.m=m"], "aliases.m and upstreams[0].models.m: 'm' is the name of a model"),
        ([ONE, "aliases={a='b', b='m'}"], "aliases.a = 'b', which is an alias itself"),
        ([ONE, "aliases.a=nobody"], "aliases.a = 'nobody': no such model; known are m"),
        ([ONE, "aliases={''='m'}"], "a name has at least one character"),
        ([OPEN, "aliases={a=''}"], "aliases.a = '': a name has at least one character"),
        ([ONE, "aliases.a=m", "front.routes.a.router={type='round_robin'}"], "front.routes.a: 'a' is an alias; write"),
        ([ONE, "front.routes.n.admission={type='open'}"], "front.routes.n: 'n' is no such model; known are m"),
        ([ONE, "front.routes.n.fallbacks=['m']"], "front.routes.n: 'n' is no such model; known are m"),
        (["upstreams=[{name='a', url='http://a:0'}]"], "upstreams[0].url: 'http://a:0' has port 0"),
        ([ONE, "front.quota_default={requests_burst=3}"], "requests_burst bounds nothing without requests_per_s"),
        ([ONE, "front.quota_default={requests_per_s=1e-9}"], "front.quota_default.requests_per_s"),
        ([ONE, "front.quota_default={gpu_seconds={limit=1e-9}}"], "front.quota_default.gpu_seconds.limit"),
        ([ONE, "front.routes.m.fallbacks=['m']"], "front.routes.m.fallbacks has 'm' twice, or is for that model"),
        ([ONE, "front.routes.m.transfers_to=['n']"], "front.routes.m.transfers_to has 'n': no such model"),
        ([ONE, "front.routes.m.fallbacks=['n']"], "front.routes.m.fallbacks has 'n': no such model; known are m"),
        ([ONE, "aliases.a=m", "front.routes.a.fallbacks=['m']"], "write it for 'm'"),
        (["discovery.file='nowhere.toml'"], "discovery.file: nowhere.toml cannot be read"),
        (["upstreams=[{name='a', url='nowhere'}]"], "upstreams[0].url: 'nowhere' is no http or https URL"),
        (["upstreams=[{name='a', url='http://a', kind='vlm'}]"], 'did you mean "vllm"?'),
    ],
)
def test_what_cannot_work_is_refused_by_key(assignments: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(*assignments)
    assert said in str(caught.value)


def test_names_that_upstreams_bring_later_cannot_be_checked_yet() -> None:
    config = given(OPEN, "aliases.a=later", "front.routes.x.fallbacks=['y']").config
    assert config.aliases == {"a": "later"}


def test_a_fallback_may_cross_from_own_engines_to_an_upstream() -> None:
    config = given(ONE, "engine.kind=synthetic", "model.replicas=1", "front.routes.synthetic.fallbacks=['m']").config
    assert config.front.routes["synthetic"].fallbacks == ("m",)
