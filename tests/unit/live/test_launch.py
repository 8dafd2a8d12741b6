import socket

import msgspec
import pytest

from headway.core.errors import ConfigError, EngineError
from headway.live.byte_tokens import VOCAB_SIZE
from headway.live.config import Config, Host, ModelSettings, resolve, set_layer
from headway.live.launch import find_models, plan
from headway.live.listening import bind
from headway.live.run import CONTROL, FRONT


def configured(*assignments: str) -> Config:
    return resolve([set_layer(a) for a in ("engine.kind=synthetic", *assignments)], Host(2)).config


def test_every_replica_has_its_own_id() -> None:
    config = configured("model.replicas=3")
    started = plan(config, find_models(config, lambda line: None))
    assert [spec.node for spec in started.replicas] == ["rep-0", "rep-1", "rep-2"]


@pytest.mark.parametrize(
    ("moves", "listeners"), [((), (FRONT,)), (("fleet.migration={}",), (FRONT, CONTROL))], ids=["still", "migrates"]
)
def test_the_control_node_hears_reports_where_it_may_move_something(
    moves: tuple[str, ...], listeners: tuple[str, ...]
) -> None:
    # SPEC E1: one report in place of two, every 20 ms
    config = configured("model.replicas=2", *moves)
    started = plan(config, find_models(config, lambda line: None))
    assert {spec.listeners for spec in started.replicas} == {listeners}
    assert {spec.control for spec in started.replicas} == {CONTROL}


def test_the_synthetic_model_needs_no_file_and_has_a_tokenizer() -> None:
    (served,) = find_models(configured(), lambda line: None)
    assert (served.name, served.files, served.tokenizer().vocab_size) == ("synthetic", None, VOCAB_SIZE)


def test_clients_may_know_the_model_by_another_name() -> None:
    config = configured("model.served_name=mine")
    assert plan(config, find_models(config, lambda line: None)).replicas[0].model == "mine"


def test_several_models_share_the_numbers_of_replicas() -> None:
    # SPEC A6
    config = configured("models=[{served_name='a', replicas=2}, {served_name='b'}]")
    served = find_models(config, lambda line: None)
    assert [(spec.node, spec.model) for spec in plan(config, served).replicas] == [
        ("rep-0", "a"),
        ("rep-1", "a"),
        ("rep-2", "b"),
    ]


def test_with_upstreams_and_no_model_nothing_is_fetched() -> None:
    config = resolve([set_layer("upstreams=[{name='a', url='http://a:1'}]")], Host(2)).config
    assert find_models(config, lambda line: pytest.fail(line)) == ()


def test_a_model_that_is_nowhere_names_the_key() -> None:
    config = msgspec.structs.replace(Config(), model=ModelSettings(name="no such folder"))
    with pytest.raises(ConfigError, match=r"model\.name: .*no such folder"):
        find_models(config, lambda line: None)


def test_port_0_is_any_free_port() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_port_in_use_names_the_keys() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EngineError, match=r"server\.host, server\.port: cannot listen"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_replicas_of_pictures_report_as_often_as_those_of_text() -> None:
    config = configured("diffusion=[{name='p', engine='synthetic'}]", "executor.report_interval_ms=35")
    (told,) = [spec.diffusion for spec in plan(config, ()).replicas if spec.diffusion is not None]
    assert told.report_interval_ms == 35.0
