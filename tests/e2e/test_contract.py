"""CONTRACT.md, sentence by sentence, against a running server with API keys."""

import asyncio
import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.serving import Server, serve, until
from tests.e2e.wire import Answer, Connection, call, request_bytes

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ALICE, BOB, ROOT = ({"authorization": f"Bearer {name}-key"} for name in ("alice", "bob", "root"))
MODEL = "synthetic"
TRACE = "0af7651916cd43dd8448eb211c80319c"

ROUTES = {
    CHAT: "POST", TEXT: "POST", "/v1/models": "GET", f"/v1/models/{MODEL}": "GET", "/tokenize": "POST",
    "/detokenize": "POST", "/health": "GET", "/ready": "GET", "/version": "GET", "/metrics": "GET",
    "/reset_prefix_cache": "POST", "/v1/ledger": "GET", "/v1/requests/some/evidence": "GET", "/v1/estimates": "POST",
}  # fmt: skip
OPEN_ROUTES = {"/health", "/ready", "/version", "/metrics"}  # probes and scrapers carry no key
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    TEXT: {"model": MODEL, "prompt": "hi", "max_tokens": 2},
    "/tokenize": {"model": MODEL, "prompt": "hi"},
    "/detokenize": {"model": MODEL, "tokens": [104, 105]},
    "/reset_prefix_cache": {},
    "/v1/estimates": {"endpoint": TEXT, "body": {"model": MODEL, "prompt": "hi"}},
}
EVIDENCE = (
    "segments", "queue_wait_ms", "input_transfer_bytes", "input_transfer_ms", "prefill_ms", "decode_ms", "idle_gap_ms",
    "overlap_ratio", "stream_output_ms", "transfer_bytes", "handoff_ms", "recompute_ms", "network_wait_ms",
    "communication_ms", "exposed_comm_ms", "model_load_ms", "cold_start", "ttft_ms", "tpot_ms", "e2e_ms",
    "cached_tokens", "preemptions", "steps_done", "replica", "tenant", "decisions",
)  # fmt: skip
SEGMENTS = {
    "admission", "gateway_queue", "input_transfer", "model_load", "engine_queue", "prefill", "handoff", "recompute",
    "decode", "preempted", "network_wait", "stream_output", "other",
}  # fmt: skip
METRICS = (
    "headway_request_ttft_seconds_count", "headway_request_tpot_seconds_count", "headway_request_e2e_seconds_count",
    "headway_request_queue_seconds_count", "headway_requests_running", "headway_requests_waiting",
    "headway_requests_total", "headway_kv_blocks_used", "headway_kv_blocks_total",
    "headway_prefix_cache_hit_tokens_total", "headway_prefix_cache_query_tokens_total", "headway_prompt_tokens_total",
    "headway_generation_tokens_total", "headway_preemptions_total", "headway_scheduler_step_seconds_count",
    "headway_scheduler_step_seconds_sum", "headway_admission_total", "headway_gpu_seconds_total",
)  # fmt: skip


def key_lines() -> str:
    def line(name: str) -> str:
        digest = hashlib.sha256(f"{name}-key".encode()).hexdigest()
        return f'[[auth.keys]]\nhash = "sha256:{digest}"\ntenant = "{name}"\nadmin = {str(name == "root").lower()}\n'

    return "".join(line(name) for name in ("alice", "bob", "root")) + "[auth.tenants.bob]\npriority_floor = 0\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("contract") / "headway.toml"
    path.write_text(key_lines() + "[limits]\nbody_bytes = 100000\n[engine.synthetic]\nstep_us = 1000\n")
    with serve("--engine", "synthetic", "--config", str(path), "--verbose") as running:
        yield running
        told = "\n".join((*running.out, *running.errors))
        assert "-key" not in told  # SPEC M5: no secrets in logs
        assert "shared secret" not in told
        assert not [line for line in running.errors if "Traceback" in line], running.errors


def ask(
    server: Server,
    path: str,
    body: object | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    return asyncio.run(call(server.url, path, body, ALICE if headers is None else headers, method))


def generated(server: Server, body: dict[str, object], headers: Mapping[str, str] | None = None) -> Answer:
    answer = ask(server, CHAT, BODIES[CHAT] | body, headers)
    assert answer.status == 200, answer.body
    return answer


def ledger(server: Server, headers: Mapping[str, str] = ROOT) -> dict[str, dict[str, Any]]:  # JSON
    return {account["name"]: account for account in ask(server, "/v1/ledger", None, headers).json()["accounts"]}  # type: ignore[union-attr]  # JSON


def metric(server: Server, name: str) -> float:
    lines = ask(server, "/metrics").body.decode().splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and line[len(name)] in " {"]
    assert values, f"{name} is not in /metrics"
    return sum(values)


def evidence(server: Server, request: str, headers: Mapping[str, str] = ALICE) -> dict[str, Any]:  # JSON
    path = f"/v1/requests/{request}/evidence"
    until(lambda: ask(server, path, None, headers).status == 200, f"evidence of {request}", 5)
    return ask(server, path, None, headers).json()


# Routes


@pytest.mark.parametrize("path", ROUTES)
def test_each_route_takes_its_method_and_refuses_the_others(server: Server, path: str) -> None:
    # SPEC H1
    taken = ROUTES[path]
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        body = BODIES.get(path) if method == "POST" else None
        answer = ask(server, path, body, ROOT, method)
        if method == taken:
            assert answer.status == (404 if path.endswith("/evidence") else 200), answer.body
        else:
            assert answer.status == 405
            assert answer.headers["allow"] == taken
            assert answer.error()["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v1/models/", "/V1/models", "/v1/models/none"])
def test_what_is_no_route_is_404(server: Server, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 404
    assert answer.error()["type"] == "not_found_error"


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/reset_prefix_cache"])
def test_a_large_body_is_413_declared_or_not(server: Server, path: str) -> None:
    large = json.dumps(BODIES[path] | {"user": "x" * 100_000}).encode()
    assert ask(server, path, large).error()["code"] == "body_too_large"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)
    answer = ask(server, path, chunked, ALICE | {"transfer-encoding": "chunked"})
    assert (answer.status, answer.error()["code"]) == (413, "body_too_large")


# Headers


@pytest.mark.parametrize("path", ROUTES)
def test_the_request_id_is_echoed_or_minted_or_refused(server: Server, path: str) -> None:
    for method in (ROUTES[path], "DELETE"):
        body = BODIES.get(path) if method == "POST" else None
        assert ask(server, path, body, ROOT | {"x-request-id": "mine-1~"}, method).headers["x-request-id"] == "mine-1~"
        minted = {ask(server, path, body, ROOT, method).headers["x-request-id"] for _ in range(2)}
        assert len(minted) == 2
        for bad in ("a b", "a" * 257, "", "caf\xe9"):
            refused = ask(server, path, body, ROOT | {"x-request-id": bad}, method)
            assert (refused.status, refused.error()["param"]) == (400, "x-request-id")
            assert refused.headers["x-request-id"] not in (bad, "")


def test_a_trace_is_continued(server: Server) -> None:
    given = f"00-{TRACE}-b7ad6b7169203331-01"
    continued = generated(server, {}, ALICE | {"traceparent": given}).headers["traceparent"]
    version, trace, span, flags = continued.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert span != "b7ad6b7169203331"
    for broken in ("", "00-0-0-0", f"00-{'0' * 32}-b7ad6b7169203331-01", f"ff-{TRACE}-b7ad6b7169203331-01"):
        begun = generated(server, {}, ALICE | {"traceparent": broken}).headers["traceparent"]
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", begun)
        assert TRACE not in begun


# Tenants


@pytest.mark.parametrize("path", sorted(set(ROUTES) - OPEN_ROUTES))
def test_an_unknown_key_is_401_and_nothing_is_run(server: Server, path: str) -> None:
    # SPEC M5
    before = metric(server, "headway_generation_tokens_total") if path in (CHAT, TEXT) else 0
    for headers in ({}, *({"authorization": given} for given in ("Bearer nobody", "alice-key", "Basic x", "Bearer"))):
        answer = ask(server, path, BODIES.get(path), headers, ROUTES[path])
        assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key")
        assert answer.error()["type"] == "authentication_error"
    assert path not in (CHAT, TEXT) or metric(server, "headway_generation_tokens_total") == before


def test_what_belongs_to_one_tenant_is_not_visible_to_another(server: Server) -> None:
    # SPEC M5, B2
    long: dict[str, object] = {"messages": [{"role": "user", "content": "a shared secret " * 40}]}
    generated(server, long, ALICE | {"x-request-id": "of-alice"})
    evidence(server, "of-alice")
    path = "/v1/requests/of-alice/evidence"
    foreign, unknown = ask(server, path, None, BOB), ask(server, path.replace("of-", "not-of-"), None, BOB)
    assert (foreign.status, unknown.status) == (404, 404)
    assert foreign.body == unknown.body.replace(b"not-of-", b"of-")
    assert evidence(server, "of-alice", ROOT)["tenant"] == "alice"
    hits = {
        name: generated(server, long, headers).json()["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index]  # JSON
        for name, headers in (("bob", BOB), ("root", ROOT), ("alice", ALICE), ("bob again", BOB))
    }
    assert hits["alice"] == hits["bob again"] > 500
    assert hits["bob"] == hits["root"] == 0
    assert not [name for name in ledger(server, BOB) if name.startswith("tenant/alice/")]
    assert {"tenant/alice/tokens", "tenant/bob/tokens"} <= set(ledger(server, ROOT))


@pytest.mark.parametrize("given", ["a/b", "what?", "100%", "a#b", '"quoted"', "~!$&'()*+,;=:@", "a/evidence"])
def test_any_id_that_is_echoed_finds_its_evidence(server: Server, given: str) -> None:
    # SPEC I4
    generated(server, {"max_tokens": 2, "ignore_eos": True}, ALICE | {"x-request-id": given})
    assert evidence(server, urllib.parse.quote(given, safe=""))["output_tokens"] == 2


def test_an_answer_that_nobody_waited_for_has_evidence_too(server: Server) -> None:
    # SPEC I4
    async def leave() -> None:
        connection = await Connection.open(server.url)
        body = BODIES[CHAT] | {"max_tokens": 4000, "ignore_eos": True, "stream": True}
        await connection.send(request_bytes(CHAT, body, ALICE | {"x-request-id": "left"}))
        await connection.reader.readuntil(b"data: ")
        accounts = json.loads((await call(server.url, "/v1/ledger", None, ROOT)).body)["accounts"]
        reserved = {account["name"]: account["reserved"] for account in accounts}
        connection.drop()
        assert reserved["tenant/alice/tokens"] > 4000
        assert reserved["tenant/alice/gpu_seconds"] > 0  # by what those before it took

    asyncio.run(leave())
    found = evidence(server, "left")
    assert found["outcome"] == "cancelled"
    assert 0 < found["output_tokens"] < 4000
    assert ledger(server)["tenant/alice/tokens"]["reserved"] == 0
    assert ledger(server)["tenant/alice/gpu_seconds"]["reserved"] == 0


def test_a_repeated_id_names_the_latest_use_of_each_tenant(server: Server) -> None:
    for headers, tokens in ((ALICE, 3), (BOB, 4), (ALICE, 5)):
        generated(server, {"max_tokens": tokens, "ignore_eos": True}, headers | {"x-request-id": "twice"})
    until(lambda: evidence(server, "twice", ALICE)["output_tokens"] == 5, "the latest of alice")
    assert evidence(server, "twice", BOB)["output_tokens"] == 4


def test_only_an_admin_resets_the_prefix_cache_and_priority_has_a_floor(server: Server) -> None:
    assert ask(server, "/reset_prefix_cache", {}, BOB).status == 403
    assert ask(server, CHAT, BODIES[CHAT] | {"priority": -1}, BOB).error()["param"] == "priority"
    assert ask(server, CHAT, BODIES[CHAT] | {"priority": 5}, BOB).status == 200
    assert ask(server, CHAT, BODIES[CHAT] | {"priority": -1}, ALICE).status == 200


# Bodies


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("temprature", "temperature"), ("max_token", "max_tokens"), ("topk", "top_k"), ("Stream", "stream"),
        ("presence_penality", "presence_penalty"), ("stop_tokens_ids", "stop_token_ids"), ("zzzzzz", None),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_with_the_nearest_name(server: Server, given: str, nearest: str | None) -> None:
    for path in (CHAT, TEXT):
        error = ask(server, path, BODIES[path] | {given: 1}).error()
        assert (error["code"], error["param"]) == ("unknown_parameter", given)
        assert ("Did you mean" in str(error["message"])) == (nearest is not None)
        assert nearest is None or f"`{nearest}`" in str(error["message"])


def test_what_clients_send_harmlessly_is_taken(server: Server) -> None:
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "x",
        "parallel_tool_calls": True, "prompt_cache_key": "k", "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "allow_degrade": ["max_tokens"], "logit_bias": None, "stop": None,
    }  # fmt: skip
    generated(server, harmless)


def test_extensions_are_served_as_named(server: Server) -> None:
    extended = {
        "priority": 3, "cache_salt": "s", "session_id": "t", "ignore_eos": True, "min_tokens": 6, "max_tokens": 6,
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [7], "return_token_ids": True,
        "request_id": "by-body",
    }  # fmt: skip
    answer = generated(server, extended)
    body: dict[str, Any] = answer.json()  # JSON
    assert answer.headers["x-request-id"] == "by-body"
    assert body["usage"]["completion_tokens"] == len(body["choices"][0]["token_ids"]) == 6
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    assert evidence(server, "by-body")["output_tokens"] == 6


def test_a_stop_token_is_counted_and_listed(server: Server) -> None:
    asked = {"max_tokens": 40, "temperature": 0, "return_token_ids": True, "logprobs": True, "ignore_eos": True}
    whole: dict[str, Any] = generated(server, asked).json()["choices"][0]  # type: ignore[index]  # JSON
    stop = whole["token_ids"][9]
    first = whole["token_ids"].index(stop) + 1
    cut: dict[str, Any] = generated(server, asked | {"stop_token_ids": [stop]}).json()  # JSON
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] == first
    assert cut["choices"][0]["token_ids"] == whole["token_ids"][:first]


def test_tokens_come_back_as_they_were(server: Server) -> None:
    for text in ("hello", "h\u00e9llo w\u00f6rld \U0001f600", " \n\t ", "a" * 5000):
        tokens = ask(server, "/tokenize", {"model": MODEL, "prompt": text}).json()
        assert tokens["count"] == len(tokens["tokens"])  # type: ignore[arg-type]  # JSON
        assert tokens["max_model_len"] == 8192
        back = ask(server, "/detokenize", {"model": MODEL, "tokens": tokens["tokens"]}).json()
        assert back == {"prompt": text}
    messages = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    tokens = ask(server, "/tokenize", messages).json()
    usage: Any = generated(server, messages).json()["usage"]  # JSON
    assert usage["prompt_tokens"] == tokens["count"]
    assert "hello" in str(ask(server, "/detokenize", {"model": MODEL, "tokens": tokens["tokens"]}).json()["prompt"])
    both = ask(server, "/tokenize", messages | {"prompt": "x"})
    assert (both.status, both.error()["param"]) == (400, "prompt")


def test_models_carry_modalities(server: Server) -> None:
    listed: Any = ask(server, "/v1/models").json()  # JSON
    assert listed["object"] == "list"
    assert [(one["id"], one["object"], one["modalities"]) for one in listed["data"]] == [(MODEL, "model", ["text"])]
    assert ask(server, f"/v1/models/{MODEL}").json() == listed["data"][0]


# Ledger, evidence, estimates, metrics


def test_the_ledger_has_its_accounts_and_they_return_to_zero(server: Server) -> None:
    # SPEC L-2
    before = ledger(server).get("tenant/alice/tokens", {"used": 0})["used"]
    usage: Any = generated(server, {"max_tokens": 9, "ignore_eos": True}).json()["usage"]  # JSON
    until(lambda: not server_held(server), "the levels are at zero", 5)
    accounts = ledger(server)
    kinds = {name: (account["kind"], account["cache"]) for name, account in accounts.items()}
    level, meter = ("level", False), ("meter", False)
    promised = {
        "replica/rep-0/kv_blocks": level, "replica/rep-0/kv_cached": ("level", True),
        "replica/rep-0/step_tokens": level, "gateway/in_flight": level, "gateway/stream_bytes": level,
        "tenant/alice/tokens": meter, "tenant/alice/gpu_seconds": meter,
    }  # fmt: skip
    assert promised.items() <= kinds.items()
    for account in accounts.values():
        assert set(account) == {"name", "owner", "unit", "kind", "capacity", "reserved", "used", "cache", "age_ms"}
        assert account["reserved"] == 0
        assert account["age_ms"] >= 0
    assert accounts["tenant/alice/tokens"]["used"] - before == usage["total_tokens"]
    assert accounts["tenant/alice/gpu_seconds"]["used"] > 0


def server_held(server: Server) -> list[str]:
    return [
        account["name"] for account in ledger(server).values()
        if account["reserved"] + (account["used"] if account["kind"] == "level" and not account["cache"] else 0)
    ]  # fmt: skip


def test_evidence_is_complete_and_adds_up(server: Server) -> None:
    # SPEC I1, I2
    generated(server, {"max_tokens": 20, "ignore_eos": True}, ALICE | {"x-request-id": "whole"})
    found = evidence(server, "whole")
    assert set(EVIDENCE) <= set(found)
    assert set(found["segments"]) <= SEGMENTS
    assert sum(found["segments"].values()) == pytest.approx(found["e2e_ms"], rel=0.01)
    assert 0 < found["ttft_ms"] < found["e2e_ms"]
    assert found["tpot_ms"] > 0
    assert (found["output_tokens"], found["replica"], found["tenant"]) == (20, "rep-0", "alice")
    # What does not apply is null, what was measured as nothing is 0.
    nothing = ("transfer_bytes", "handoff_ms", "communication_ms", "exposed_comm_ms")
    assert {name: found[name] for name in nothing} == dict.fromkeys(nothing)
    assert (found["preemptions"], found["model_load_ms"], found["cold_start"]) == (0, 0, False)
    assert found["decisions"]
    for decision in found["decisions"]:
        assert set(decision) == {"level", "at_ms", "kind", "chosen", "alternatives", "reason"}
        assert decision["level"] in ("step", "cache", "batch", "pool", "pd")


def test_a_single_token_has_no_time_per_output_token(server: Server) -> None:
    generated(server, {"max_tokens": 1}, ALICE | {"x-request-id": "single"})
    found = evidence(server, "single")
    assert found["tpot_ms"] is None
    assert found["ttft_ms"] > 0


def test_a_refused_request_leaves_evidence_without_times_of_the_engine(server: Server) -> None:
    headers = ALICE | {"x-slo-e2e-ms": "2000", "x-request-id": "no"}  # 8000 tokens take minutes, reading this takes ms
    refused = ask(server, CHAT, BODIES[CHAT] | {"max_tokens": 8000, "ignore_eos": True}, headers)
    assert (refused.status, refused.error()["code"]) == (429, "slo_unattainable")
    assert refused.headers["retry-after-ms"].isdigit()
    assert refused.headers["x-should-retry"] == "false"  # waiting makes 8000 tokens no faster
    assert "forecast" in str(refused.error()["message"])
    found = evidence(server, "no")
    assert (found["ttft_ms"], found["prefill_ms"], found["replica"]) == (None, None, None)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_estimates_have_a_price_and_grow_with_the_work(server: Server, path: str) -> None:
    def estimate(tokens: int) -> dict[str, Any]:  # JSON
        return ask(server, "/v1/estimates", {"endpoint": path, "body": BODIES[path] | {"max_tokens": tokens}}).json()

    few, many = estimate(4), estimate(400)
    for one in (few, many):
        assert {"gpu_seconds", "price_usd", "eta_s", "memory_bytes", "verdict"} <= set(one)
        assert one["price_usd"] == pytest.approx(one["gpu_seconds"] * 2.5 / 3600, rel=1e-3)  # both have four digits
        assert one["ttft_ms"] > 0
        assert one["tpot_ms"] > 0
        assert one["verdict"] == "admit"
    for name in ("gpu_seconds", "price_usd", "eta_s", "memory_bytes"):
        assert few[name] < many[name], name
    asked = {"endpoint": path, "body": BODIES[path] | {"max_tokens": 4}}
    forecast = ask(server, "/v1/route/explain", asked, ROOT).json()["replicas"][0]["ttft_s"]
    assert few["ttft_ms"] == pytest.approx(1000 * forecast, rel=0.05)  # SPEC A7: one prediction wherever it is told
    bad = ask(server, "/v1/estimates", {"endpoint": path, "body": BODIES[path] | {"temprature": 1}})
    assert bad.error()["code"] == "unknown_parameter"
    assert ask(server, "/v1/estimates", {"endpoint": "/v1/none", "body": {}}).error()["param"] == "endpoint"


def test_every_metric_has_a_sample(server: Server) -> None:
    generated(server, {})
    until(lambda: not server_held(server), "it is reported", 5)
    assert all(metric(server, name) >= 0 for name in METRICS)
    # With its first beat once it is ready.
    until(lambda: "headway_gc_pause_seconds_count{" in ask(server, "/metrics").body.decode(), "its collector", 5)
    text = ask(server, "/metrics").body.decode()
    assert 'le="0.001"' in text
    assert 'le="60.0"' in text


def test_counters_move_exactly(server: Server) -> None:
    names = (
        "headway_generation_tokens_total", "headway_prompt_tokens_total", "headway_requests_total",
        "headway_admission_total", "headway_request_ttft_seconds_count", "headway_request_e2e_seconds_count",
        "headway_prefix_cache_query_tokens_total", "headway_prefix_cache_hit_tokens_total",
    )  # fmt: skip
    asked = {"max_tokens": 11, "ignore_eos": True, "n": 2, "messages": [{"role": "user", "content": "count " * 50}]}
    generated(server, asked)
    until(lambda: not server_held(server), "it is over", 5)
    before = {name: metric(server, name) for name in names}
    usage: Any = generated(server, asked).json()["usage"]  # JSON
    until(lambda: not server_held(server), "it is over", 5)
    moved = {name.removeprefix("headway_"): metric(server, name) - before[name] for name in names}
    prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["completion_tokens"] == 22
    assert cached > 0
    assert moved == {
        "generation_tokens_total": 22, "prompt_tokens_total": 2 * prompt, "requests_total": 2, "admission_total": 2,
        "request_ttft_seconds_count": 2, "request_e2e_seconds_count": 2, "prefix_cache_query_tokens_total": 2 * prompt,
        "prefix_cache_hit_tokens_total": 2 * cached,
    }  # fmt: skip


def test_the_router_knows_what_the_replica_has_cached(server: Server) -> None:  # AMD-AGI/Infera#143
    names = ("predicted", "reported", "overpredicted")
    asked = {"messages": [{"role": "user", "content": "know me " * 60}]}
    generated(server, asked)
    until(lambda: not server_held(server), "it is over", 5)
    before = {name: metric(server, f"headway_prefix_{name}_tokens_total") for name in names}
    usage: Any = generated(server, asked).json()["usage"]  # JSON
    moved = {name: metric(server, f"headway_prefix_{name}_tokens_total") - before[name] for name in names}
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert moved == {"predicted": cached // 64 * 64, "reported": cached, "overpredicted": 0}  # in steps of 64 tokens
    assert cached >= 64


def test_a_reset_empties_the_prefix_cache(server: Server) -> None:
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "remember " * 50}]}

    def cached() -> int:
        found: int = generated(server, asked).json()["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index]  # JSON
        return found

    cached()
    assert cached() > 0
    until(lambda: not server_held(server), "it is over", 5)
    assert ask(server, "/reset_prefix_cache", {}, ROOT).status == 200
    until(lambda: ledger(server)["replica/rep-0/kv_cached"]["used"] == 0, "the ledger shows it", 5)
    assert cached() == 0


# The official client


def test_the_official_client_is_served(server: Server) -> None:
    # SPEC H1
    with openai.OpenAI(base_url=server.url + "/v1", api_key="alice-key", max_retries=0) as client:
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "seed": 1}
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("none")
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**asked, extra_body={"temprature": 1})
        assert refused.value.code == "unknown_parameter"
        assert refused.value.request_id
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="nobody")
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


# The document itself


def test_the_names_here_are_those_of_the_document() -> None:
    page = Path(__file__).parents[3] / "shared/design/CONTRACT.md"
    if not page.exists():
        pytest.skip("the contract is not beside this checkout")
    words = set(re.findall(r"[A-Za-z0-9_/\-]+", page.read_text().replace("[/id]", "")))
    names = [name.removesuffix("_count").removesuffix("_sum") for name in METRICS]
    routes = [re.sub(rf"/{MODEL}$", "", path).partition("/some")[0].removesuffix("/requests") for path in ROUTES]
    wanted = {*EVIDENCE, *SEGMENTS, *names, *routes} - {"/v1"}
    assert {name for name in wanted if name not in words} == set()
