import asyncio
import hashlib
import json

import pytest
from tests.unit.adapters.gateway.fakes import MODEL, Client, FakeServing, Reply, chat, get, post, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.settings import ApiKey, AuthSettings, GatewaySettings, SloDefaults, TenantSettings
from headway.core.errors import ConfigError
from headway.core.reports import RateLimit, RateLimits

TOY = toy_tokenizer()


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


KEYED = GatewaySettings(
    auth=AuthSettings(
        keys=(ApiKey(digest("sk-a"), "a"), ApiKey(digest("sk-b"), "b"), ApiKey(digest("sk-root"), "ops", admin=True)),
        tenants={"a": TenantSettings(priority_floor=0, weight=2)},
    )
)


def many(
    serving: FakeServing, *calls: tuple[str, str, object, str | None], settings: GatewaySettings = KEYED
) -> list[Reply]:
    """(method, path, body, key) one after the other, against one app."""

    async def run() -> list[Reply]:
        app = build_app(serving, {MODEL: TOY}, settings)
        out = []
        for method, path, body, key in calls:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            out.append(await Client(app).call(method, path, body, {**headers, "x-request-id": "mine"}))
        return out

    return asyncio.run(run())


def assert_error(reply: Reply, status: int, code: str) -> None:
    assert reply.status == status
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"] == code


def test_an_unknown_path_is_404() -> None:
    # SPEC H1
    assert_error(get(FakeServing(TOY), "/v1/nothing-here"), 404, "unknown_url")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("PUT", "/v1/models/toy", "GET"),
        ("POST", "/v1/requests/x/evidence", "GET"),
        ("GET", "/reset_prefix_cache", "POST"),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_one(method: str, path: str, allow: str) -> None:
    reply = get(FakeServing(TOY), path, method=method)
    assert_error(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == allow


def test_an_unknown_model_is_404() -> None:
    assert_error(post(FakeServing(TOY), chat() | {"model": "no-such"}), 404, "model_not_found")
    assert_error(get(FakeServing(TOY), "/v1/models/no-such"), 404, "model_not_found")


def test_the_request_id_is_echoed_or_minted_on_every_response() -> None:
    serving = FakeServing(TOY)
    assert post(serving, chat(), headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert post(serving, chat(temperature=-1), headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert post(serving, chat(request_id="body-1")).headers["x-request-id"] == "body-1"
    assert len(get(serving, "/nope").headers["x-request-id"]) == 32


def test_a_request_id_in_body_and_header_must_agree() -> None:
    reply = post(FakeServing(TOY), chat(request_id="b"), headers={"x-request-id": "h"})
    assert_error(reply, 400, "invalid_value")
    assert post(FakeServing(TOY), chat(request_id="h"), headers={"x-request-id": "h"}).status == 200


def test_repeated_request_ids_stay_apart_inside() -> None:
    serving = FakeServing(TOY)
    for _ in range(2):
        post(serving, chat(), headers={"x-request-id": "same"})
    first, second = serving.requests
    assert first.id != second.id
    assert first.id.startswith("req-same-")


def test_the_trace_goes_on() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    reply = post(FakeServing(TOY), chat(), headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    assert reply.headers["traceparent"].startswith(f"00-{trace}-")


def test_headers_and_body_reach_the_request() -> None:
    # SPEC L-4
    serving = FakeServing(TOY)
    headers = {"x-slo-e2e-ms": "500"}
    settings = GatewaySettings(slo={"/v1/chat/completions": SloDefaults(tpot_ms=20)})
    post(serving, chat(priority=3, max_tokens=4), headers=headers, settings=settings)
    (request,) = serving.requests
    assert (request.urgency, request.sampling.max_tokens) == (-3, 4)
    assert request.slo.tpot_ns == 20_000_000
    assert request.slo.e2e_deadline_ns is not None
    assert request.slo.e2e_deadline_ns - request.arrived_ns < 500_000_000


def test_keys_are_asked_for_where_work_or_tenants_are_seen() -> None:
    # SPEC M5
    serving = FakeServing(TOY)
    guarded = [
        ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
        ("POST", "/v1/estimates"), ("POST", "/reset_prefix_cache"), ("GET", "/v1/models"), ("GET", "/v1/models/toy"),
        ("GET", "/v1/ledger"), ("GET", "/v1/requests/x/evidence"),
    ]  # fmt: skip
    for reply in many(serving, *((method, path, b"{}", "sk-nope") for method, path in guarded)):
        assert_error(reply, 401, "invalid_api_key")
    free = ["/health", "/ready", "/version", "/ping", "/metrics", "/openapi.json", "/load"]
    assert {reply.status for reply in many(serving, *(("GET", path, b"", None) for path in free))} == {200}
    assert serving.requests == []


def test_tenants_see_neither_each_others_evidence_nor_accounts() -> None:
    # SPEC M5
    path = "/v1/requests/mine/evidence"
    replies = many(
        FakeServing(TOY),
        ("POST", "/v1/chat/completions", chat(), "sk-a"),
        ("GET", path, b"", "sk-a"),
        ("GET", path, b"", "sk-b"),
        ("GET", path, b"", "sk-root"),
        ("GET", "/v1/ledger", b"", "sk-a"),
        ("GET", "/v1/ledger", b"", "sk-root"),
    )
    assert [reply.status for reply in replies] == [200, 200, 404, 200, 200, 200]
    assert replies[1].json()["tenant"] == "a"
    names = [{account["name"] for account in reply.json()["accounts"]} for reply in replies[4:]]
    assert names[1] - names[0] == {"tenant/b/gpu_seconds"}
    assert "replica/rep-0/kv_blocks" in names[0]


def test_the_answers_own_id_names_its_evidence() -> None:
    replies = many(
        FakeServing(TOY),
        ("POST", "/v1/chat/completions", chat(), "sk-a"),
        ("GET", "/v1/requests/chatcmpl-mine/evidence", b"", "sk-a"),
    )
    assert replies[0].json()["id"] == "chatcmpl-mine"
    assert replies[1].json()["request"].startswith("req-mine-")


def test_the_id_of_decisions_and_traces_names_its_evidence_to_its_tenant_only() -> None:
    serving = FakeServing(TOY)

    async def statuses() -> list[int]:
        app = build_app(serving, {MODEL: TOY}, KEYED)
        await Client(app).call("POST", "/v1/chat/completions", chat(), {"authorization": "Bearer sk-a"})
        path = f"/v1/requests/{serving.requests[0].id}/evidence"
        keys = [{"authorization": f"Bearer {key}"} for key in ("sk-a", "sk-b")]
        return [(await Client(app).call("GET", path, b"", key)).status for key in keys]

    assert asyncio.run(statuses()) == [200, 404]


def test_tenants_and_salts_never_share_a_prefix() -> None:
    # SPEC B2
    serving = FakeServing(TOY)
    text = "the quick brown fox " * 20
    bodies = [(chat(text), "sk-a"), (chat(text), "sk-b"), (chat(text, cache_salt="s"), "sk-a"), (chat(text), "sk-a")]
    many(serving, *(("POST", "/v1/chat/completions", body, key) for body, key in bodies))
    roots = [request.cache_root for request in serving.requests]
    assert len(set(roots)) == 3
    assert roots[0] == roots[3]
    assert len({request.block_hashes for request in serving.requests}) == 3
    assert len(serving.requests[0].block_hashes) == len(serving.requests[0].prompt) // 16


def test_a_salt_cannot_pose_as_another_tenant() -> None:
    serving = FakeServing(TOY)
    many(
        serving,
        ("POST", "/v1/chat/completions", chat(cache_salt="a"), "sk-b"),
        ("POST", "/v1/chat/completions", chat(), "sk-a"),
        ("POST", "/v1/chat/completions", chat(cache_salt='b","a'), "sk-a"),
    )
    assert len({request.cache_root for request in serving.requests}) == 3


def test_a_tenant_has_a_priority_floor_and_a_weight() -> None:
    # SPEC A9
    serving = FakeServing(TOY)
    route = "/v1/chat/completions"
    ok, refused = many(serving, ("POST", route, chat(priority=0), "sk-a"), ("POST", route, chat(priority=-1), "sk-a"))
    assert ok.status == 200
    assert serving.requests[0].tenant_weight == 2
    assert_error(refused, 400, "invalid_value")
    assert refused.json()["error"]["param"] == "priority"


def test_only_an_admin_resets_the_cache_where_there_is_one() -> None:
    serving = FakeServing(TOY)
    refused, done = many(
        serving, ("POST", "/reset_prefix_cache", b"", "sk-a"), ("POST", "/reset_prefix_cache", b"", "sk-root")
    )
    assert_error(refused, 403, "admin_only")
    assert (done.status, serving.resets) == (200, 1)
    assert post(serving, b"", "/reset_prefix_cache").status == 200


def test_an_admin_sees_drains_and_brings_back_replicas() -> None:
    # SPEC A11
    serving = FakeServing(TOY)
    refused, listed, drained, back, unknown = many(
        serving,
        ("POST", "/v1/replicas/rep-0/drain", b"", "sk-a"),
        ("GET", "/v1/replicas", b"", "sk-root"),
        ("POST", "/v1/replicas/rep-0/drain", b"", "sk-root"),
        ("POST", "/v1/replicas/rep-0/undrain", b"", "sk-root"),
        ("POST", "/v1/replicas/rep-9/drain", b"", "sk-root"),
    )
    assert_error(refused, 403, "admin_only")
    (shown,) = listed.json()["data"]
    assert (shown["id"], shown["state"], shown["health"], shown["breaker"]) == ("rep-0", "ready", "up", "closed")
    assert (shown["in_flight"], shown["age_ms"], shown["drained"]) == (1, 1.0, False)
    assert (drained.json(), back.json()) == ({"id": "rep-0", "drained": True}, {"id": "rep-0", "drained": False})
    assert_error(unknown, 404, "replica_not_found")
    assert serving.drains == [("rep-0", True), ("rep-0", False)]


def test_an_admin_sees_where_a_request_would_go_and_nothing_runs() -> None:
    # SPEC A2, L-5
    serving = FakeServing(TOY)
    body = {"endpoint": "/v1/chat/completions", "body": chat()}
    refused, shown = many(
        serving, ("POST", "/v1/route/explain", body, "sk-a"), ("POST", "/v1/route/explain", body, "sk-root")
    )
    assert_error(refused, 403, "admin_only")
    answer = shown.json()
    assert (answer["policy"], answer["verdict"], answer["output_tokens"]) == ("CostAware", "admit", 7)
    assert [(each["replica"], each["place"], each["parts"]) for each in answer["replicas"]] == [
        ("rep-0", 0, {"queue": 1.0}),
        ("rep-1", None, {}),
    ]
    assert serving.requests == []


def test_without_an_admin_key_anybody_may_ask_for_a_route_and_a_bad_body_is_refused_as_it_would_be() -> None:
    serving = FakeServing(TOY)
    body = {"endpoint": "/v1/chat/completions", "body": chat()}
    assert post(serving, body, "/v1/route/explain").status == 200
    wrong = {"endpoint": "/v1/chat/completions", "body": chat(max_tokens=-1)}
    assert post(serving, wrong, "/v1/route/explain").json()["error"]["param"] == "max_tokens"


def test_a_session_reaches_the_router() -> None:  # SPEC A4
    serving = FakeServing(TOY)
    assert post(serving, chat(session_id="s-1")).status == 200
    assert serving.requests[0].session == "s-1"


def test_a_trace_is_for_admins_and_covers_what_was_asked() -> None:
    # SPEC I4
    serving = FakeServing(TOY)
    path = "/debug/trace?seconds=2.5"
    refused, told = many(serving, ("GET", path, b"", "sk-a"), ("GET", path, b"", "sk-root"))
    assert_error(refused, 403, "admin_only")
    assert told.json()["seconds"] == 2.5
    assert get(serving, "/debug/trace").json()["seconds"] == 60


def test_a_trace_comes_also_as_json_lines() -> None:
    # SPEC I4
    reply = get(FakeServing(TOY), "/debug/trace?seconds=3&format=jsonl")
    assert (reply.headers["content-type"], reply.body) == ("application/jsonl", b'{"seconds": 3.0}\n')
    assert_error(get(FakeServing(TOY), "/debug/trace?format=parquet"), 400, "invalid_value")


@pytest.mark.parametrize("seconds", ["x", "-1", "0", "nan", "1e5", ""])
def test_a_trace_of_no_time_is_refused(seconds: str) -> None:
    assert_error(get(FakeServing(TOY), f"/debug/trace?seconds={seconds}"), 400, "invalid_value")


def test_head_is_get_without_a_body() -> None:
    assert get(FakeServing(TOY), "/health", method="HEAD").status == 200


def test_settings_that_cannot_work_are_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="slo"):
        build_app(FakeServing(TOY), {MODEL: TOY}, GatewaySettings(slo={"/nope": SloDefaults()}))


def test_startup_and_shutdown_are_acknowledged() -> None:
    async def run() -> list[str]:
        incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent: list[str] = []

        async def receive() -> dict:
            return incoming.pop(0)

        async def send(message: dict) -> None:
            sent.append(message["type"])

        await build_app(FakeServing(TOY), {MODEL: TOY}, GatewaySettings())({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(run()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_metrics_move_with_a_request_and_count_exactly() -> None:
    # SPEC M2
    serving = FakeServing(TOY, lambda request: TOY.encode("one two three", add_special_tokens=False))
    tokens = len(TOY.encode("one two three", add_special_tokens=False)) + 1
    text = "the quick brown fox " * 4
    chat_route = "/v1/chat/completions"
    replies = many(
        serving,
        ("POST", chat_route, chat(text), None),
        ("POST", chat_route, chat(text, stream=True, stop=["two"]), None),
        ("POST", chat_route, chat(temperature=-1), None),
        ("GET", "/metrics", b"", None),
        settings=GatewaySettings(metrics_aliases="vllm"),
    )
    lines = dict(line.rsplit(" ", 1) for line in replies[-1].body.decode().splitlines() if not line.startswith("#"))
    cut = serving.stopped[0][1] + 1
    prompt = len(serving.requests[0].prompt)
    assert float(lines['headway_generation_tokens_total{model="toy"}']) == tokens + cut
    assert float(lines['headway_prompt_tokens_total{model="toy"}']) == 2 * prompt
    assert float(lines['headway_requests_total{outcome="ok"}']) == 2
    assert float(lines['headway_requests_total{outcome="invalid"}']) == 1
    assert float(lines['headway_request_ttft_seconds_count{cold="false"}']) == 2
    assert float(lines['vllm:generation_tokens_total{model="toy"}']) == tokens + cut
    cached = json.loads(replies[0].body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    hits = float(lines['headway_prefix_cache_hit_tokens_total{replica="rep-0"}'])
    assert (cached, hits) == (0, prompt // 16 * 16)


def test_answers_and_streams_tell_the_tenant_s_limits() -> None:
    # SPEC A8
    serving = FakeServing(TOY)
    serving.limits = RateLimits(requests=RateLimit(60, 59, 1_000_000_000))
    for stream in (False, True):
        headers = post(serving, chat(stream=stream)).headers
        assert headers["x-ratelimit-limit-requests"] == "60"
        assert headers["x-ratelimit-remaining-requests"] == "59"
        assert headers["x-ratelimit-reset-requests"] == "1s"
        assert "x-ratelimit-limit-tokens" not in headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_key_of_a_request_for_text_is_refused_and_no_promise_is_broken(path: str, stream: bool) -> None:  # SPEC H1
    serving = FakeServing(TOY)
    body = {"model": MODEL, "prompt": "a", "stream": stream} if path == "/v1/completions" else chat(stream=stream)
    reply = keyed(serving, path, body, "order-17")
    assert_error(reply, 400, "unsupported_parameter")
    assert reply.json()["error"]["param"] == "idempotency-key"
    assert keyed(serving, path, body, "stainless-python-retry-0f").status == 200  # the SDK's own


def keyed(serving: FakeServing, path: str, body: object, key: str) -> Reply:
    client = Client(build_app(serving, {MODEL: TOY}, GatewaySettings()))
    return asyncio.run(client.call("POST", path, body, {"idempotency-key": key}))
