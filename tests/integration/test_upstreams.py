"""`headway serve` in front of scripted upstreams, whole: HTTP in, the front, the relay, HTTP out (SPEC A5, A6, A11)."""

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.upstream_server import Fault, Script, Upstream
from typer.testing import CliRunner

from headway.cli.route import app as route
from headway.live.config import Host, resolve, set_layer
from headway.live.launch import Running, find_models
from headway.live.listening import bind

QUICK = "watch={health_interval_s=0.05, scrape_interval_s=0.05, models_interval_s=0.1, timeout_s=2.0}"
PATIENCE_S = 20.0


class Gateway:
    """One running gateway in a thread of its own."""

    def __init__(self, *assignments: str) -> None:
        config = resolve([set_layer(assignment) for assignment in assignments], Host(2)).config
        self.said: list[str] = []
        self._listener = bind("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._config = config
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), f"not ready: {self.said}"
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        served = find_models(self._config, self.said.append)
        self.running = Running(self._config, served, lambda who, what: self.said.append(f"{who}: {what}"))
        await self.running.run(self._listener, self._ready.set)
        self.running.live.check()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.running.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def ask(
        self,
        body: Mapping[str, object],
        headers: Mapping[str, str] | None = None,
        path: str = "/v1/chat/completions",
    ) -> tuple[int, dict[str, str], bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            given = {"content-type": "application/json", **(headers or {})}
            client.request("POST", path, json.dumps(body), given)
            answer = client.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            client.close()

    def get(self, path: str) -> tuple[int, Any]:  # JSON, or text
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            client.request("GET", path)
            answer = client.getresponse()
            raw = answer.read()
            is_json = "json" in (answer.getheader("content-type") or "")
            return answer.status, json.loads(raw) if is_json else raw.decode()
        finally:
            client.close()

    def post(self, path: str) -> int:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            client.request("POST", path)
            return client.getresponse().status
        finally:
            client.close()

    def until(self, claim: Any, what: str) -> None:  # a callable without arguments
        pause = threading.Event()
        for _ in range(2000):
            if claim():
                return
            pause.wait(0.01)
        raise AssertionError(f"never: {what}; said: {self.said}")

    def held(self) -> dict[str, int]:
        accounts = self.get("/v1/ledger")[1]["accounts"]
        return {a["name"]: a["reserved"] + a["used"] for a in accounts if a["kind"] == "level" and not a["cache"]}


@contextlib.contextmanager
def gateway(*assignments: str) -> Iterator[Gateway]:
    made = Gateway(*assignments)
    try:
        yield made
        made.until(lambda: not any(made.held().values()), f"accounts go back to zero, now {made.held()}")
    finally:
        made.stop()


def one(name: str, upstream: Upstream, more: str = "") -> str:
    return f"{{name='{name}', url='{upstream.url}', kind='{upstream.script.kind}', {more}{QUICK}}}"


def upstreams(*tables: str) -> str:
    return f"upstreams=[{', '.join(tables)}]"


def body(model: str = "model-a", text: str = "hello", **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def content(raw: bytes) -> str:
    text: str = json.loads(raw)["choices"][0]["message"]["content"]
    return text


def streamed(raw: bytes) -> str:
    events = [json.loads(line[6:]) for line in raw.decode().split("\n\n") if line.startswith("data: {")]
    return "".join(c["delta"].get("content", "") for event in events for c in event.get("choices", ()))


def test_an_upstream_alone_needs_no_model_and_no_torch() -> None:
    # SPEC A6, M1
    with Upstream(Script()) as up, gateway(upstreams(one("a", up))) as headway:
        status, headers, raw = headway.ask(body())
        assert (status, content(raw)) == (200, up.expected(body()))
        assert "x-headway-model" not in headers
        asked = body(stream=True, stream_options={"include_usage": True})
        status, _, raw = headway.ask(asked)
        assert (status, streamed(raw)) == (200, up.expected(asked))
        assert raw.endswith(b"data: [DONE]\n\n")
        assert headway.get("/ready")[0] == 200
        assert headway.running.models() == ["model-a"]
        assert 'headway_generation_tokens_total{model="model-a"} 16.0' in headway.get("/metrics")[1]


def test_models_adapters_and_aliases_are_listed_and_routed() -> None:
    # SPEC A6
    script = Script(models=("their-name",), adapters=("lora-x",))
    with (
        Upstream(script) as up,
        gateway(upstreams(one("a", up, "models={m='their-name'}, ")), "aliases={gpt='m', tuned='lora-x'}") as headway,
    ):
        headway.until(lambda: len(headway.get("/v1/models")[1]["data"]) == 4, "adapters are listed")
        cards = {card["id"]: (card["root"], card["parent"]) for card in headway.get("/v1/models")[1]["data"]}
        assert cards == {
            "m": ("m", None),
            "lora-x": ("lora-x", "m"),
            "gpt": ("m", None),
            "tuned": ("lora-x", None),
        }
        for name, theirs, echo in (
            ("m", "their-name", None),
            ("gpt", "their-name", "m"),
            ("lora-x", "lora-x", None),
            ("tuned", "lora-x", "lora-x"),
        ):
            status, headers, raw = headway.ask(body(name))
            assert (status, content(raw)) == (200, up.expected(body(theirs)))
            assert up.seen[-1].body["model"] == theirs
            assert headers.get("x-headway-model") == echo
        assert headway.ask(body("their-name"))[0] == 404
        assert headway.get("/v1/models/gpt")[1]["root"] == "m"


def test_the_route_of_a_relayed_request_is_explained_and_nothing_is_run() -> None:
    with Upstream(Script()) as a, Upstream(Script()) as b, Upstream(Script(models=("other",))) as c:
        tables = upstreams(one("a", a), one("b", b), one("c", c))
        with gateway(tables, "aliases={gpt='model-a'}", "front.router.type=cost_aware") as headway:
            headway.until(lambda: len(headway.running.live.front.router.replicas) == 3, "all are there")
            asked = body("gpt", "word " * 400, max_tokens=7, ignore_eos=True)
            outcome = CliRunner().invoke(
                route, ["explain", "-", "--json", "--url", f"http://127.0.0.1:{headway.port}"], input=json.dumps(asked)
            )
            assert outcome.exit_code == 0, outcome.output
            said = json.loads(outcome.output)
            assert (said["model"], said["policy"], said["verdict"]) == ("model-a", "CostAware", "admit")
            assert (said["output_tokens"], said["prompt_tokens"] > 400) == (7, True)
            found = {each["replica"]: each for each in said["replicas"]}
            assert {found["up-a"]["place"], found["up-b"]["place"]} == {0, 1}
            assert all(found[name]["parts"] for name in ("up-a", "up-b"))
            assert (found["up-c"]["place"], found["up-c"]["reason"]) == (None, "it serves other as upstream")
            assert not a.seen + b.seen + c.seen
            wrong = {"endpoint": "/v1/chat/completions", "body": {**asked, "max_tokens": "seven"}}
            status, _, raw = headway.ask(wrong, path="/v1/route/explain")
            assert (status, "max_tokens" in json.loads(raw)["error"]["message"]) == (400, True)
            assert headway.ask({**wrong, "body": asked}, path="/v1/estimates")[0] == 400


def test_what_needs_no_change_goes_byte_for_byte() -> None:
    with Upstream(Script()) as up, gateway(upstreams(one("a", up))) as headway:
        raw = b'{ "messages" :[{"role":"user","content":"caf\\u00e9"}], "model":"model-a", "seed":7 }'
        client = http.client.HTTPConnection("127.0.0.1", headway.port, timeout=PATIENCE_S)
        client.request("POST", "/v1/chat/completions", raw, {"content-type": "application/json"})
        assert client.getresponse().status == 200
        client.close()
        assert up.seen[-1].raw == raw


def test_credentials_follow_the_rule_of_each_upstream(tmp_path: Path) -> None:
    # litellm#12090: the client's Authorization leaks upstream though disabled; vllm-router PR#155: it is dropped
    (tmp_path / "key").write_text("ours\n")
    key = f"authorization='key', api_key_file='{tmp_path / 'key'}', models={{k='model-a'}}, "
    with Upstream(Script(api_key="ours")) as keyed, Upstream(Script()) as plain, Upstream(Script()) as forwarding:
        all_three = upstreams(
            one("keyed", keyed, key),
            one("plain", plain, "models={p='model-a'}, "),
            one("forward", forwarding, "authorization='forward', models={f='model-a'}, "),
        )
        with gateway(all_three) as headway:
            mine = {"authorization": "Bearer mine", "x-request-id": "abc"}
            for model in ("k", "p", "f"):
                assert headway.ask(body(model), mine)[0] == 200
            assert keyed.seen[-1].headers["authorization"] == "Bearer ours"
            assert "authorization" not in plain.seen[-1].headers
            assert forwarding.seen[-1].headers["authorization"] == "Bearer mine"
            assert not any("ours" in line for line in headway.said)


def test_two_upstreams_share_the_work_and_one_that_goes_leaves_it_to_the_other() -> None:
    # SPEC A11: before the first byte a request is run elsewhere
    with Upstream(Script()) as a, Upstream(Script()) as b:
        both = upstreams(one("a", a), one("b", b))
        with gateway(both, "front.router.type=round_robin") as headway:
            headway.until(lambda: len(headway.running.live.front.router.replicas) == 2, "both are there")
            for number in range(6):
                asked = body(text=f"question {number}")
                assert content(headway.ask(asked)[2]) == a.expected(asked)
            assert a.counts.answered
            assert b.counts.answered
            b.stop()
            for number in range(6):
                asked = body(text=f"another {number}")
                status, _, raw = headway.ask(asked)
                assert (status, content(raw)) == (200, a.expected(asked))


def test_views_say_where_they_come_from_and_how_old_they_are() -> None:
    # SPEC A5
    with Upstream(Script(kind="vllm")) as told, Upstream(Script(kind="openai")) as silent:
        models = "models={q='model-a'}, "
        with gateway(upstreams(one("told", told), one("silent", silent, models))) as headway:
            replicas = headway.running.live.front.router.replicas
            headway.until(
                lambda: {r.source for r in replicas.values() if r.report} == {"scrape", "counted"}, "both report"
            )
            metrics = headway.get("/metrics")[1]
            assert 'headway_requests_running{replica="up-told"} 0.0' in metrics
            assert 'headway_kv_blocks_total{replica="up-told"} 1000.0' in metrics


def test_a_restart_on_the_same_port_is_another_incarnation() -> None:
    with Upstream(Script()) as up, gateway(upstreams(one("a", up))) as headway:
        replicas = headway.running.live.front.router.replicas
        headway.until(lambda: replicas["up-a"].source == "scrape", "it is scraped")  # type: ignore[index]  # a NodeId
        assert headway.ask(body())[0] == 200
        threading.Event().wait(1.6)  # a start is told in whole seconds by some
        up.restart()
        headway.until(lambda: replicas.get("up-a") and replicas["up-a"].incarnation == 2, "it is a new one")  # type: ignore[call-overload,index]  # a NodeId
        assert content(headway.ask(body())[2]) == up.expected(body())


def test_the_file_of_upstreams_is_followed_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "up.json"

    def write(*upstreams: tuple[str, Upstream]) -> None:
        watch = {"health_interval_s": 0.05, "scrape_interval_s": 0.05, "models_interval_s": 0.1}
        listed = [{"name": n, "url": u.url, "kind": "vllm", "watch": watch} for n, u in upstreams]
        file.write_text(json.dumps({"upstreams": listed}))

    with Upstream(Script()) as a, Upstream(Script(models=("model-b",))) as b:
        write(("a", a))
        with gateway(f"discovery.file='{file}'", "discovery.interval_s=0.05") as headway:
            assert headway.ask(body())[0] == 200
            assert headway.ask(body("model-b"))[0] == 404
            write(("a", a), ("b", b))
            headway.until(lambda: headway.ask(body("model-b"))[0] == 200, "b is added")
            file.write_text("{broken")
            headway.until(lambda: any("stay as they were" in line for line in headway.said), "it is told")
            assert headway.ask(body("model-b"))[0] == 200
            write(("b", b))
            headway.until(lambda: headway.ask(body())[0] == 404, "a is taken out")


def test_an_upstream_that_comes_back_to_the_file_is_a_new_one_and_not_drained(tmp_path: Path) -> None:
    file = tmp_path / "up.toml"
    with Upstream(Script()) as a, Upstream(Script(models=("model-b",))) as b:
        lines = f"upstreams = [{one('b', b)}]\n", f"upstreams = [{one('a', a)}, {one('b', b)}]\n"
        file.write_text(lines[1])
        with gateway(f"discovery.file='{file}'", "discovery.interval_s=0.05") as headway:
            headway.until(lambda: headway.ask(body())[0] == 200, "a is there")
            assert headway.post("/v1/replicas/up-a/drain") == 200
            drained = headway.running.live.control.control.drained
            assert list(drained) == ["up-a"]
            file.write_text(lines[0])
            headway.until(lambda: not drained, "a is taken out, and its drain with it")
            file.write_text(lines[1])
            headway.until(lambda: headway.ask(body())[0] == 200, "a answers again")


def test_a_removed_upstream_ends_what_it_answers(tmp_path: Path) -> None:
    # dynamo#11173: drain must outlast long streams
    file = tmp_path / "up.toml"
    with Upstream(Script(tokens=4)) as up:
        file.write_text(f"upstreams = [{one('a', up)}]\n")
        with gateway(f"discovery.file='{file}'", "discovery.interval_s=0.05") as headway:
            up.inject(Fault("stall", after=2, path="/v1/chat"))
            asked, got = body(stream=True), []
            client = threading.Thread(target=lambda: got.append(headway.ask(asked)), daemon=True)
            client.start()
            headway.until(lambda: up.counts.active == 1, "it streams")
            file.write_text("upstreams = []\n")
            headway.until(lambda: any("leaves; 1 answers go on" in line for line in headway.said), "it drains")
            up.release()
            client.join(PATIENCE_S)
            assert streamed(got[0][2]) == up.expected(asked)


def test_a_fallback_answers_while_the_model_cannot_and_says_so() -> None:
    # envoy ai-gateway#1866: fallback silently inactive
    with Upstream(Script()) as a, Upstream(Script(models=("model-b",))) as b:
        both = upstreams(one("a", a, "models={model-a='model-a'}, "), one("b", b))
        with gateway(both, "front.routes.model-a.fallbacks=['model-b']") as headway:
            headway.until(lambda: headway.ask(body("model-b"))[0] == 200, "b is there")
            assert "x-headway-model" not in headway.ask(body())[1]
            a.stop()
            asked = body("model-b", stream=True)
            for _ in range(3):
                status, headers, raw = headway.ask({**asked, "model": "model-a"})
                assert (status, streamed(raw)) == (200, b.expected(asked))
                assert headers["x-headway-model"] == "model-b"


def test_own_engines_and_upstreams_serve_side_by_side_and_stand_in_for_each_other() -> None:
    # SPEC A6
    own = ("engine.kind=synthetic", "model.replicas=1", "aliases={small='synthetic'}")
    routes = ("front.routes.model-a.fallbacks=['synthetic']",)
    with Upstream(Script()) as up, gateway(upstreams(one("a", up)), *own, *routes) as headway:
        status, headers, _ = headway.ask(body("small", max_tokens=4))
        assert (status, headers.get("x-headway-model")) == (200, "synthetic")
        assert content(headway.ask(body())[2]) == up.expected(body())
        up.stop()
        router = headway.running.live.front.router
        headway.until(lambda: not router.can_serve("model-a", headway.running.live.relaying.now_ns()), "a is not well")
        status, headers, _ = headway.ask(body(max_tokens=4))
        assert (status, headers.get("x-headway-model")) == (200, "synthetic")


def test_a_relayed_tenant_has_its_quota_and_is_told_of_it() -> None:
    # SPEC A8
    quota = "front.quota_default={requests_per_s=0.001, requests_burst=2}"
    with Upstream(Script()) as up, gateway(upstreams(one("a", up)), quota) as headway:
        answers = [headway.ask(body()) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert [headers["x-ratelimit-remaining-requests"] for _, headers, _ in answers] == ["1", "0", "0"]
        assert json.loads(answers[2][2])["error"]["code"] == "rate_limited"
        assert len(up.seen) == 2


CROWDED = (  # by the second request that waits
    "front.admission={type='bounded', params={queue_max=1}}",
    "front.room={cold_requests=1, engine_queue_ms=0.0}",
)


def test_admission_may_send_a_request_to_another_model() -> None:
    # SPEC A7: transfer
    routes = ("front.routes.model-a.transfers_to=['model-b']",)
    with Upstream(Script(max_seqs=1)) as a, Upstream(Script(models=("model-b",))) as b:
        both = upstreams(one("a", a, "connection={connections_max=1}, "), one("b", b))
        with gateway(both, *CROWDED, *routes) as headway:
            headway.until(lambda: headway.ask(body("model-b"))[0] == 200, "b is there")
            a.inject(Fault("slow_first_byte", times=-1, path="/v1/chat"))
            waiting = [threading.Thread(target=headway.ask, args=(body(),), daemon=True) for _ in range(2)]
            book = headway.running.live.front.book
            for number, client in enumerate(waiting):
                client.start()
                headway.until(lambda wanted=number: len(book.requests) > wanted, "it came")
            status, headers, raw = headway.ask(body())
            assert (status, content(raw)) == (200, b.expected(body("model-b")))
            assert headers["x-headway-model"] == "model-b"
            a.clear()
            for client in waiting:
                client.join(PATIENCE_S)


def test_admission_may_send_a_request_to_another_model_of_our_own() -> None:
    # SPEC A7: transfer
    own = (
        "engine.kind=synthetic",
        "engine.synthetic.step_us=60000",
        "models=[{served_name='small'}, {served_name='large'}]",
        "scheduler.max_seqs=1",
    )
    with gateway(*own, *CROWDED, "front.routes.small.transfers_to=['large']") as headway:
        book, clients = headway.running.live.front.book, []
        statuses: list[tuple[int, str | None]] = []

        def client() -> None:
            status, headers, _ = headway.ask(body("small", max_tokens=40, ignore_eos=True))
            statuses.append((status, headers.get("x-headway-model")))

        for number in range(6):
            clients.append(threading.Thread(target=client, daemon=True))
            clients[-1].start()
            headway.until(lambda wanted=number: len(book.requests) + len(statuses) > wanted, "it came")
        for one_client in clients:
            one_client.join(PATIENCE_S)
        assert {status for status, _ in statuses} <= {200, 429}
        assert (200, "large") in statuses
        assert (200, None) in statuses


@pytest.mark.parametrize("has_table", [False, True])
def test_what_upstreams_answer_is_metered_as_they_counted_it(tmp_path: Path, has_table: bool) -> None:
    # SPEC H6: without a job table usage is counted since the start, and says so
    table = (f"jobs.url='sqlite:///{tmp_path}/jobs.db'",) if has_table else ()
    with Upstream(Script()) as up, gateway(upstreams(one("a", up)), *table) as headway:
        status, _, raw = headway.ask(body("model-a"))
        told = json.loads(raw)["usage"]
        assert status == 200
        headway.until(lambda: headway.get("/v1/usage")[1]["data"], "it is metered")
        used = headway.get("/v1/usage")[1]
        (row,) = used["data"]
        assert (row["tenant"], row["model"], row["requests"]) == ("default", "model-a", 1)
        assert (row["prompt_tokens"], row["output_tokens"]) == (told["prompt_tokens"], told["completion_tokens"])
        assert (used["since"] is None) == has_table
        assert headway.get("/v1/usage/export")[0] == 200
