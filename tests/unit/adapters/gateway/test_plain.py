import pytest
from tests.unit.adapters.gateway.fakes import EOS, MODEL, FakeServing, chat, get, post, toy_tokenizer

from headway.adapters.gateway.answer_fields import ANSWERS
from headway.adapters.gateway.estimates import rounded
from headway.adapters.gateway.ports import Starting
from headway.adapters.gateway.settings import GatewaySettings

TOY = toy_tokenizer()


def test_models_carry_their_modalities() -> None:
    # SPEC H1
    serving = FakeServing(TOY)
    (listed,) = get(serving, "/v1/models").json()["data"]
    assert (listed["id"], listed["object"], listed["modalities"], listed["max_model_len"]) == (
        MODEL,
        "model",
        ["text"],
        512,
    )
    assert get(serving, f"/v1/models/{MODEL}").json() == listed


def test_tokenize_and_detokenize_are_inverse() -> None:
    serving = FakeServing(TOY)
    text = "one two ☃ three"
    reply = post(serving, {"model": MODEL, "prompt": text, "return_token_strs": True}, "/tokenize").json()
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == 512
    assert post(serving, {"model": MODEL, "tokens": reply["tokens"]}, "/detokenize").json() == {"prompt": text}


def test_tokenize_of_messages_equals_the_prompt_of_the_chat() -> None:
    serving = FakeServing(TOY)
    tokens = post(serving, chat("hi"), "/tokenize").json()["tokens"]
    post(serving, chat("hi"))
    assert tuple(tokens) == serving.requests[0].prompt


def test_the_only_model_need_not_be_named() -> None:
    assert post(FakeServing(TOY), {"prompt": EOS}, "/tokenize").json()["count"] == 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": MODEL}, "prompt"),
        ("/tokenize", {**chat(), "prompt": "x"}, "prompt"),
        ("/detokenize", {"model": MODEL, "tokens": [10**6]}, "tokens"),
        ("/detokenize", {"model": MODEL, "tokens": "x"}, "tokens"),
        ("/detokenize", {"model": MODEL, "tokns": [1]}, "tokns"),
        ("/v1/estimates", {"endpoint": "/v1/images", "body": {}}, "endpoint"),
        ("/v1/estimates", {"endpoint": "/v1/chat/completions", "body": chat(temprature=1)}, "temprature"),
    ],
)
def test_bad_bodies_are_refused_by_name(path: str, body: object, param: str) -> None:
    reply = post(FakeServing(TOY), body, path)
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)


def test_ready_says_why_not() -> None:
    # SPEC M2
    serving = FakeServing(TOY)
    assert get(serving, "/ready").status == 200
    serving.is_ready = (False, "weights are loading")
    reply = get(serving, "/ready")
    assert reply.status == 503
    assert "weights are loading" in reply.json()["error"]["message"]
    assert get(serving, "/health").status == 200


def test_what_is_away_while_the_rest_serves_is_told_and_keeps_nobody_out() -> None:
    # SPEC M2
    serving = FakeServing(TOY)
    assert get(serving, "/ready").json() == {"status": "ready"}
    serving.away = ("job table does not answer",)
    reply = get(serving, "/ready")
    assert (reply.status, reply.json()) == (200, {"status": "ready", "degraded": ["job table does not answer"]})


def test_while_all_models_load_nobody_is_told_that_one_does_not_exist() -> None:
    # SPEC M2
    serving = FakeServing(TOY)
    serving.is_ready, serving.is_loaded = (False, "no model is loaded yet"), False
    for path, body in (("/v1/chat/completions", chat()), ("/tokenize", {"prompt": "x"})):
        reply = post(serving, body, path)
        assert (reply.status, reply.json()["error"]["code"]) == (503, "no_replica")
        assert int(reply.headers["retry-after-ms"]) > 0


def test_a_model_that_starts_is_named_with_what_it_does_while_others_answer() -> None:
    # SPEC M2
    serving = FakeServing(TOY)
    serving.starting = lambda: [Starting("late", ("text",), "rep-1 has been in phase 'warm-up' for 12 s")]
    assert post(serving, chat()).status == 200
    reply = post(serving, {**chat(), "model": "late"})
    assert (reply.status, reply.json()["error"]["code"], reply.headers["retry-after"]) == (503, "no_replica", "2")
    assert "`late` is starting: rep-1 has been in phase 'warm-up' for 12 s" in reply.json()["error"]["message"]
    assert [card["id"] for card in get(serving, "/v1/models").json()["data"]] == [MODEL]
    assert get(serving, "/v1/models/late").status == 503
    assert post(serving, {**chat(), "model": "other"}).status == 404
    unnamed = post(serving, {"prompt": "x"}, "/tokenize")  # which of two it is does not depend on when one asks
    assert (unnamed.status, unnamed.json()["error"]["param"]) == (400, "model")
    serving.is_loaded = False
    serving.is_ready = (False, "no replica of late is ready")
    assert post(serving, {"prompt": "x"}, "/tokenize").status == 503


def test_estimates_cover_all_choices_and_carry_a_price() -> None:
    serving = FakeServing(TOY)

    def estimate(**fields: object) -> dict:
        body = {"endpoint": "/v1/chat/completions", "body": chat(**fields)}
        return post(serving, body, "/v1/estimates", settings=GatewaySettings(price_per_device_hour_usd=3600)).json()

    one, two = estimate(max_tokens=10), estimate(max_tokens=10, n=2)
    assert one["gpu_seconds"] == pytest.approx(0.025)  # floats are summed
    assert one["price_usd"] == pytest.approx(one["gpu_seconds"])
    assert (one["ttft_ms"], one["tpot_ms"], one["memory_bytes"], one["verdict"]) == (5, 2, 10240, "admit")
    assert one["eta_s"] == pytest.approx(0.005 + 9 * 0.002)
    assert two["gpu_seconds"] == pytest.approx(2 * one["gpu_seconds"])
    assert two["eta_s"] == one["eta_s"]
    assert serving.requests == []


def test_a_chat_without_a_limit_is_not_priced_for_the_whole_context() -> None:
    # SPEC A7, H6
    serving = FakeServing(TOY)
    body = {"endpoint": "/v1/chat/completions", "body": chat(n=2)}
    told = post(serving, body, "/v1/estimates", settings=GatewaySettings(price_per_device_hour_usd=3600)).json()
    left = 512 - told["prompt_tokens"] // 2
    assert left > 200
    assert (told["output_tokens"], told["max_output_tokens"]) == (400, 2 * left)
    assert (told["price_usd"], told["price_usd_max"]) == (0.81, pytest.approx(2 * (0.005 + 0.002 * left), rel=1e-3))
    assert (told["model"], told["requested_model"]) == (MODEL, MODEL)


def test_predictions_are_told_to_four_digits() -> None:
    assert [rounded(value) for value in (12460.9123, 0.000123456, 8.65, 0.0)] == [12460.0, 0.0001235, 8.65, 0.0]


def test_every_field_of_an_estimate_is_explained() -> None:
    body = {"endpoint": "/v1/chat/completions", "body": chat()}
    assert set(post(FakeServing(TOY), body, "/v1/estimates").json()) <= set(ANSWERS["POST /v1/estimates"])


def test_the_load_is_what_is_in_flight() -> None:
    assert get(FakeServing(TOY), "/load").json() == {"server_load": 0}


def test_an_unknown_request_has_no_evidence() -> None:
    reply = get(FakeServing(TOY), "/v1/requests/nope/evidence")
    assert (reply.status, reply.json()["error"]["code"]) == (404, "request_not_found")
