import pytest
from tests.unit.adapters.gateway.fakes import MODEL, FakeServing, chat, post, toy_tokenizer

from headway.adapters.gateway.settings import GatewaySettings, LimitSettings
from headway.core.blockhash import block_hashes

TOY = toy_tokenizer()


def test_choices_of_a_prompt_differ_by_seed_only() -> None:
    serving = FakeServing(TOY)
    post(serving, chat(n=3, seed=9))
    requests = serving.requests
    assert len({request.sampling.seed for request in requests}) == 3
    assert len({request.prompt for request in requests}) == 1
    assert requests[0].sampling.seed == 9
    assert [request.id.rsplit("-", 1)[1] for request in requests] == ["0", "1", "2"]


def test_a_prompt_in_a_list_gets_what_it_would_get_alone() -> None:
    together, alone = FakeServing(TOY), FakeServing(TOY)
    post(together, {"model": MODEL, "prompt": ["a b", "c d"], "seed": 4, "n": 2}, "/v1/completions")
    post(alone, {"model": MODEL, "prompt": "c d", "seed": 4, "n": 2}, "/v1/completions")
    assert [r.sampling for r in together.requests[2:]] == [r.sampling for r in alone.requests]
    assert [r.prompt for r in together.requests[2:]] == [r.prompt for r in alone.requests]


def test_hashes_are_those_of_the_ring() -> None:
    # SPEC B2
    serving = FakeServing(TOY)
    post(serving, chat("the quick brown fox " * 10))
    (request,) = serving.requests
    assert request.block_hashes == block_hashes(request.cache_root, request.prompt, 16)


def test_without_a_seed_every_request_has_its_own() -> None:
    serving = FakeServing(TOY)
    post(serving, chat())
    post(serving, chat())
    assert serving.requests[0].sampling.seed != serving.requests[1].sampling.seed


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 3}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_interval": 2}, "stream_interval"),
        ({"request_id": "a b"}, "request_id"),
        ({"stop": ["a"] * 99}, "stop"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"max_tokens": 10**6}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, "messages"),
    ],
)
def test_what_cannot_be_served_is_a_400_that_names_the_field(change: dict[str, object], param: str) -> None:
    # SPEC H1
    serving = FakeServing(TOY)
    for stream in ({}, {"stream": True}) if "stream" not in param else ({},):
        reply = post(serving, chat(**change, **stream), settings=GatewaySettings(limits=LimitSettings(n=2)))
        assert (reply.status, reply.json()["error"]["param"]) == (400, param)
    assert serving.requests == []


def test_echo_and_logprobs_exclude_each_other() -> None:
    reply = post(FakeServing(TOY), {"model": MODEL, "prompt": "a", "echo": True, "logprobs": 1}, "/v1/completions")
    assert (reply.status, reply.json()["error"]["param"]) == (400, "echo")
