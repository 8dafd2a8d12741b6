"""Upstreams that misbehave behind a whole gateway (SPEC A11; what users of other routers report is cited)."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.integration.test_upstreams import Gateway, body, content, gateway, one, streamed, upstreams
from tests.upstream_server import Fault, MetricsScript, Script, Upstream


@pytest.fixture
def pair() -> Iterator[tuple[Upstream, Upstream, Gateway]]:
    """Two upstreams of one model, asked in turn."""
    with Upstream(Script(tokens=6)) as a, Upstream(Script(tokens=6)) as b:
        both = upstreams(one("a", a), one("b", b))
        with gateway(both, "front.router.type=round_robin") as headway:
            headway.until(lambda: len(headway.running.live.front.router.replicas) == 2, "both are there")
            yield a, b, headway


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", times=-1, status=500),
        Fault("status", times=-1, status=429, retry_after="1"),
        Fault("status", times=-1, status=503),
        Fault("reset", times=-1),
        Fault("truncate", times=-1),
        Fault("garbage", times=-1),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_storm_at_one_upstream_is_answered_by_the_other(
    pair: tuple[Upstream, Upstream, Gateway], fault: Fault
) -> None:
    # sglang#25811, sglang PR#39464, smg PR#2468
    a, b, headway = pair
    a.inject(fault)
    for number in range(8):
        asked = body(text=f"{number}", stream=bool(number % 2))
        status, _, raw = headway.ask(asked)
        assert status == 200
        assert (streamed if number % 2 else content)(raw) == b.expected(asked)
    a.clear()
    # smg PR#2468: failed is never terminal
    before = a.counts.answered
    headway.until(lambda: bool(headway.ask(body())[0]) and a.counts.answered > before, "a is asked again")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("truncate", times=-1, after=1),
        Fault("reset", times=-1, after=1),
        Fault("garbage", times=-1, after=1),
        Fault("wrong_length", times=-1, delta=5),
        Fault("wrong_length", times=-1, delta=-5),
    ],
    ids=lambda fault: f"{fault.kind}{fault.delta}",
)
def test_a_json_answer_that_is_cut_or_spoilt_is_asked_for_elsewhere(
    pair: tuple[Upstream, Upstream, Gateway], fault: Fault
) -> None:
    a, b, headway = pair
    a.inject(msgspec.structs.replace(fault, path="/v1/chat"))
    for number in range(6):
        asked = body(text=f"{number}")
        status, _, raw = headway.ask(asked)
        assert (status, content(raw)) == (200, b.expected(asked))


def test_a_client_error_is_the_clients_and_closes_no_breaker(pair: tuple[Upstream, Upstream, Gateway]) -> None:
    # sglang#25811, vllm-router PR#60: 4xx opens the breaker and takes the fleet down
    a, b, headway = pair
    for upstream in (a, b):
        upstream.inject(Fault("status", times=20, status=422, path="/v1/chat"))
    codes = [headway.ask(body(text=f"{number}"))[0] for number in range(40)]
    assert codes == [422] * 40
    assert headway.ask(body())[0] == 200


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("should_retry", "code"), [("false", "rate_limited"), ("true", "slo_unattainable")])
def test_a_refusal_of_one_request_is_its_answer_and_keeps_nobody_else_out(
    pair: tuple[Upstream, Upstream, Gateway], status: int, should_retry: str, code: str
) -> None:
    # One client with an SLO that cannot be kept made every replica rest
    a, b, headway = pair
    for upstream in (a, b):
        upstream.inject(
            Fault(
                "status",
                times=-1,
                path="/v1/chat",
                asked="impossible",
                status=status,
                retry_after="30",
                should_retry=should_retry,
                code=code,
            )
        )
    for number in range(4):
        before = a.counts.requests + b.counts.requests
        got, headers, raw = headway.ask(body(text=f"impossible {number}"))
        assert (got, json.loads(raw)["error"]["code"]) == (status, code)
        assert (headers["retry-after"], headers["x-should-retry"]) == ("30", should_retry)
        assert a.counts.requests + b.counts.requests == before + 1
        asked = body(text=f"{number}")
        answered, _, raw = headway.ask(asked)
        assert (answered, content(raw)) == (200, a.expected(asked))


@pytest.mark.parametrize("kind", ["truncate", "reset", "garbage", "error_event", "no_done"])
def test_a_stream_that_breaks_ends_with_an_error_and_without_done(kind: str) -> None:
    # semantic-router#3063: an upstream error mid-stream ends in silence
    with Upstream(Script(token_ms=10)) as up, gateway(upstreams(one("a", up))) as headway:
        up.inject(Fault(kind, after=3, path="/v1/chat"))  # type: ignore[arg-type]  # one of the kinds
        status, _, raw = headway.ask(body(stream=True))
        assert status == 200
        assert b"data: [DONE]" not in raw
        last = raw.decode().strip().split("\n\n")[-1]
        assert last.startswith("data: ")
        assert "error" in json.loads(last[6:])


def test_a_client_that_leaves_stops_the_upstream_at_once() -> None:
    # smg PR#2136: client gone during long prefill is noticed only at the next chunk
    with Upstream(Script(prefill_ms=60_000)) as up, gateway(upstreams(one("a", up))) as headway:
        data = json.dumps(body(stream=True)).encode()
        with socket.create_connection(("127.0.0.1", headway.port)) as sock:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            sock.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data)
            headway.until(lambda: up.counts.active == 1, "the upstream works")
        headway.until(lambda: up.counts.client_left == 1, "the upstream is told")


def test_a_half_open_upstream_is_given_up_in_time_and_the_other_one_asked() -> None:
    quick = "connection={first_byte_timeout_s=0.3}, "
    with Upstream(Script()) as a, Upstream(Script()) as b:
        both = upstreams(one("a", a, quick), one("b", b, quick))
        with gateway(both, "front.router.type=round_robin") as headway:
            headway.until(lambda: len(headway.running.live.front.router.replicas) == 2, "both are there")
            a.inject(Fault("half_open", times=-1))
            for number in range(4):
                asked = body(text=f"{number}")
                assert content(headway.ask(asked)[2]) == b.expected(asked)


def test_an_idle_connection_that_was_closed_costs_no_request() -> None:
    # sglang#9926: the first requests after hours fail
    with Upstream(Script()) as up, gateway(upstreams(one("a", up))) as headway:
        for number in range(6):
            up.inject(Fault("close_idle", path="/v1/chat"))
            assert headway.ask(body(text=f"{number}"))[0] == 200


def test_lying_metrics_cannot_starve_an_upstream_for_ever() -> None:
    # dynamo#10564: an overload latch never clears
    with Upstream(Script()) as up, gateway(upstreams(one("a", up))) as headway:
        replicas = headway.running.live.front.router.replicas
        up.lie(MetricsScript(frozen=True))
        for number in range(6):
            assert headway.ask(body(text=f"{number}"))[0] == 200
        headway.until(lambda: all(r.source == "counted" for r in replicas.values()), "frozen metrics are found out")
        assert headway.ask(body())[0] == 200
        up.lie(MetricsScript())
        headway.until(lambda: all(r.source == "scrape" for r in replicas.values()), "they are used again")


def test_without_metrics_an_upstream_is_routable_from_its_first_moment() -> None:
    # aibrix#547: no metrics at cold start makes a pod unroutable
    with Upstream(Script()) as up:
        up.inject(Fault("status", times=-1, path="/metrics"))
        with gateway(upstreams(one("a", up))) as headway:
            assert headway.ask(body())[0] == 200


def test_an_upstream_that_is_not_there_yet_is_awaited() -> None:
    with Upstream(Script()) as up:
        up.stop()
        with gateway(upstreams(one("a", up, "models={model-a='model-a'}, "))) as headway:
            assert headway.get("/ready")[0] == 503
            assert headway.get("/health")[0] == 200
            up.start()
            headway.until(lambda: headway.get("/ready")[0] == 200, "it is there")
            assert headway.ask(body())[0] == 200


def test_many_clients_at_once_get_their_own_answers(pair: tuple[Upstream, Upstream, Gateway]) -> None:
    # vllm-router#179: one of 8 engines took all 480 concurrent requests
    a, b, headway = pair
    wrong: list[str] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", headway.port, timeout=30)
        for turn in range(10):
            asked = body(text=f"client {number} turn {turn}", stream=True)
            connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})
            got = streamed(connection.getresponse().read())
            if got != a.expected(asked):
                wrong.append(got)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert abs(a.counts.answered - b.counts.answered) < 80
    assert a.counts.answered + b.counts.answered == 160


def test_evidence_of_a_relayed_request_adds_up() -> None:
    # SPEC I1
    with Upstream(Script(token_ms=5, prefill_ms=20)) as up, gateway(upstreams(one("a", up))) as headway:
        asked = body(stream=True, stream_options={"include_usage": True})
        assert headway.ask(asked, {"x-request-id": "mine"})[0] == 200
        headway.until(lambda: headway.get("/v1/requests/mine/evidence")[0] == 200, "evidence is there")
        evidence = headway.get("/v1/requests/mine/evidence")[1]
        assert sum(evidence["segments"].values()) == pytest.approx(evidence["e2e_ms"], rel=0.01)
        assert evidence["replica"] == "up-a"
        assert evidence["output_tokens"] == 8
        assert evidence["segments"]["prefill"] >= 20
        assert evidence["ttft_ms"] is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_upstream_is_hedged_and_the_first_answer_counts(stream: bool) -> None:
    # SPEC A11: hedging for idempotent requests
    hedge = "front.hedge={after_ms=50, share_max=1.0}"
    with Upstream(Script(token_ms=2)) as a, Upstream(Script(token_ms=2)) as b:
        both = upstreams(one("a", a), one("b", b))
        with gateway(both, "front.router.type=round_robin", hedge) as headway:
            headway.until(lambda: len(headway.running.live.front.router.replicas) == 2, "both are there")
            a.inject(Fault("slow_first_byte", times=-1, path="/v1/chat"))
            for number in range(6):
                asked = body(text=f"{number}", stream=stream, temperature=0)
                status, _, raw = headway.ask(asked)
                assert (status, (streamed if stream else content)(raw)) == (200, b.expected(asked))
            headway.until(lambda: a.counts.active == 0, "the one that lost is told")


def test_upstreams_that_come_and_go_lose_no_request(tmp_path: Path) -> None:
    # aibrix#2413: drain; production-stack#680: the loop follows an old configuration
    file, wrong = tmp_path / "up.json", []
    with Upstream(Script(token_ms=3)) as a, Upstream(Script(token_ms=3)) as b, Upstream(Script(token_ms=3)) as c:

        def write(*there: Upstream) -> None:
            watch = {"health_interval_s": 0.05, "models_interval_s": 0.1}
            listed = [{"name": f"u{up.port}", "url": up.url, "kind": "vllm", "watch": watch} for up in there]
            (tmp_path / "next").write_text(json.dumps({"upstreams": listed}))
            (tmp_path / "next").rename(file)

        write(a, b)
        with gateway(f"discovery.file='{file}'", "discovery.interval_s=0.02") as headway:

            def client(number: int) -> None:
                for turn in range(25):
                    asked = body(text=f"{number} {turn}", stream=True)
                    status, _, raw = headway.ask(asked)
                    if status != 200 or streamed(raw) != a.expected(asked):
                        wrong.append(raw)

            clients = [threading.Thread(target=client, args=(number,)) for number in range(6)]
            for one_client in clients:
                one_client.start()
            pause = threading.Event()
            for there in [(b, c), (a,), (a, b, c), (c,), (a, b), (b,)] * 2:
                write(*there)
                pause.wait(0.15)
            for one_client in clients:
                one_client.join(60)
            assert wrong == []
            nodes = [str(node.id) for node in headway.running.live.upstreams.nodes]
            headway.until(lambda: list(headway.running.live.front.router.replicas) == nodes, "only b is left")
            assert nodes == [f"up-u{b.port}"]
