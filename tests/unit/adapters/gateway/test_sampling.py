import pytest

from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.sampling import (
    base_seed,
    check_vocabulary,
    choice_seed,
    logprobs_asked,
    output_tokens,
    sampling_params,
    stop_strings,
)
from headway.adapters.gateway.schema import ChatBody, CompletionBody, Message
from headway.adapters.gateway.settings import LimitSettings
from headway.core.errors import RequestError
from headway.core.request import SamplingParams

CARD = ModelCard("toy", ("text",), 100, 0, 16, 50)


def body(**fields: object) -> ChatBody:
    return ChatBody(model="toy", messages=[Message("user", "x")], **fields)


def text_body(**fields: object) -> CompletionBody:
    return CompletionBody(model="toy", prompt="x", **fields)


def test_a_chat_may_fill_the_context_by_default() -> None:
    assert output_tokens(body(), 30, CARD) == 70


def test_a_text_completion_has_16_tokens_by_default() -> None:
    assert output_tokens(text_body(), 30, CARD) == 16


def test_both_names_of_the_limit_work_unless_they_differ() -> None:
    assert output_tokens(body(max_completion_tokens=7), 30, CARD) == 7
    assert output_tokens(body(max_completion_tokens=7, max_tokens=7), 30, CARD) == 7
    with pytest.raises(RequestError, match="max_completion_tokens"):
        output_tokens(body(max_completion_tokens=7, max_tokens=8), 30, CARD)


@pytest.mark.parametrize(("prompt", "asked"), [(100, None), (100, 1), (90, 11), (5000, 5)])
def test_what_exceeds_the_context_is_refused_as_openai_does(prompt: int, asked: int | None) -> None:
    # SPEC H1
    with pytest.raises(RequestError, match="maximum context length is 100 tokens") as caught:
        output_tokens(body(max_tokens=asked), prompt, CARD)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "messages")


def test_min_tokens_fits_into_the_limit() -> None:
    assert output_tokens(body(max_tokens=5, min_tokens=5), 30, CARD) == 5
    with pytest.raises(RequestError, match="min_tokens"):
        output_tokens(body(max_tokens=5, min_tokens=6), 30, CARD)


def test_defaults_are_openais() -> None:
    assert sampling_params(body(), 9, 3) == SamplingParams(max_tokens=9, seed=3)


def test_zero_is_a_value() -> None:
    params = sampling_params(body(temperature=0, top_k=-1, logprobs=True, top_logprobs=0), 9, 3)
    assert (params.temperature, params.top_k, params.logprobs) == (0, 0, 0)


def test_every_field_arrives() -> None:
    params = sampling_params(
        body(
            temperature=0.5,
            top_p=0.9,
            top_k=4,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=0.3,
            min_tokens=2,
            ignore_eos=True,
            stop_token_ids=[7],
            logit_bias={"9": -1.5, "3": 2},
            allowed_token_ids=[1, 2],
        ),
        9,
        3,
    )
    assert params == SamplingParams(
        9, 0.5, 0.9, 4, 0.1, 1.1, 0.2, 0.3, 3, None, 2, True, (7,), ((3, 2.0), (9, -1.5)), (1, 2)
    )


def test_a_choice_keeps_its_seed_whatever_n_is() -> None:
    seeds = [choice_seed(7, choice) for choice in range(4)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [choice_seed(7, choice) for choice in range(4)]


def test_seeds_fit_into_signed_64_bits() -> None:
    assert [base_seed(body(seed=seed)) for seed in (-1, 0, 2**63 - 1)] == [2**63 - 1, 0, 2**63 - 1]
    assert base_seed(body()) != base_seed(body())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [50]}, "stop_token_ids"),
        ({"allowed_token_ids": [0, 99]}, "allowed_token_ids"),
        ({"logit_bias": {"50": 1.0}}, "logit_bias"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1.0}}, "logit_bias"),
    ],
)
def test_tokens_that_the_model_lacks_are_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_vocabulary(body(**fields), CARD)
    assert caught.value.param == param


@pytest.mark.parametrize("stop", [["a"] * 17, [""], "", ["x" * 1025]])
def test_stop_strings_have_limits(stop: str | list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        stop_strings(body(stop=stop), LimitSettings())
    assert caught.value.param == "stop"


def test_top_logprobs_need_logprobs() -> None:
    with pytest.raises(RequestError, match="logprobs: true"):
        logprobs_asked(body(top_logprobs=2))
    assert logprobs_asked(body(logprobs=True)) == 0
    assert logprobs_asked(text_body(logprobs=3)) == 3
