import asyncio
import json

import pytest
from aiohttp import web

from headway.bench.load import LoadParams, Progress, body, prompt, run_load
from headway.bench.outcome import Outcome


class Server:
    """A small OpenAI-like server; `script` is what each stream sends."""

    def __init__(self, script: list[str], status: int = 200) -> None:
        self.script, self.status = script, status
        self.bodies: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.open = self.most = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if self.status != 200 and self.script:
            return web.Response(text="".join(self.script), status=self.status)
        if self.status != 200:
            return web.json_response({"error": {"code": "queue_full", "type": "x"}}, status=self.status)
        self.open += 1
        self.most = max(self.most, self.open)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for line in self.script:
            await response.write(f"{line}\n\n".encode())
            await asyncio.sleep(0)
        self.open -= 1
        return response


def text(piece: str) -> str:
    return "data: " + json.dumps({"choices": [{"text": piece}]})


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}'
GOOD = [": ping", text("a"), text(""), text("b"), USAGE, "data: [DONE]"]


def against(server: Server, **change: object) -> list[Outcome]:
    async def main() -> list[Outcome]:
        app = web.Application()
        app.router.add_post("/v1/completions", server.answer)
        app.router.add_post("/v1/chat/completions", server.answer)
        app.router.add_post("/v1/images/generations", server.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        params = LoadParams(url=f"http://127.0.0.1:{port}/", model="m", **change)  # type: ignore[arg-type]  # fields of LoadParams
        try:
            return await run_load(params)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def test_pictures_come_in_one_piece() -> None:  # SPEC K1
    class Painter(Server):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            self.bodies.append(await request.json())
            return web.json_response({"created": 1, "data": [{"b64_json": "eA=="}] * (len(self.bodies) % 2)})

    painter = Painter([])
    made, nothing = against(painter, count=2, concurrency=1, endpoint="images", size="64x96")
    assert (made.error, made.images, made.output_tokens, made.times_ns) == (None, 1, 0, (made.ended_ns,))
    assert (nothing.error, nothing.images, nothing.times_ns) == ("broken", 0, ())
    asked = {key: painter.bodies[0][key] for key in ("model", "n", "size", "response_format")}
    assert asked == {"model": "m", "n": 1, "size": "64x96", "response_format": "b64_json"}


def test_counts_pieces_with_text_and_tokens_of_the_usage() -> None:  # SPEC K1
    (outcome,) = against(Server(GOOD), count=1)
    assert outcome.error is None
    assert len(outcome.times_ns) == 2
    assert (outcome.output_tokens, outcome.prompt_tokens) == (7, 9)
    assert outcome.ttft_ns is not None
    assert outcome.sent_ns < outcome.times_ns[0] <= outcome.ended_ns


def test_closed_loop_sends_each_once_and_never_more_at_a_time() -> None:  # SPEC K1
    server = Server(GOOD)
    outcomes = against(server, count=12, concurrency=3)
    assert len(outcomes) == len({str(sent["prompt"]) for sent in server.bodies}) == 12
    assert 1 <= server.most <= 3


def test_open_loop_does_not_wait_for_answers() -> None:  # SPEC K1
    outcomes = against(Server(GOOD), count=20, rate_per_s=2000.0)
    assert [outcome.error for outcome in outcomes] == [None] * 20


def test_concurrency_caps_an_open_loop() -> None:  # SPEC K1
    server = Server(GOOD)
    outcomes = against(server, count=20, rate_per_s=2000.0, concurrency=1)
    assert (len(outcomes), server.most) == (20, 1)


def test_progress_counts_what_was_sent_what_ended_and_what_failed() -> None:
    progress = Progress(3)
    asyncio.run(run_load(LoadParams(url="http://127.0.0.1:9", model="m", count=3), progress))
    assert (progress.sent, len(progress.outcomes), progress.failed) == (3, 3, 3)


def test_chat_reads_deltas_and_sends_the_key() -> None:
    server = Server(['data: {"choices": [{"delta": {"content": "hi"}}]}', "data: [DONE]"])
    (outcome,) = against(server, count=1, endpoint="chat", api_key="secret", ignore_eos=True)
    assert (len(outcome.times_ns), outcome.output_tokens) == (1, 1)
    assert server.keys == ["Bearer secret"]
    assert server.bodies[0]["ignore_eos"] is True
    assert "messages" in server.bodies[0]


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (Server([], status=429), "queue_full"),
        (Server([text("a")]), "broken"),
        (Server(["data: <html>"]), "unreadable"),
        (Server([text("a"), 'data: {"error": {"code": "engine_lost"}}']), "engine_lost"),
    ],
)
def test_failures_are_outcomes_with_a_code(server: Server, error: str) -> None:
    (outcome,) = against(server, count=1)
    assert outcome.error == error


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (['{"error": {"code": "invalid_value", "message": "`m` makes\\n pictures."}}'], 400, "`m` makes pictures."),
        ([text("a"), 'data: {"error": {"code": "engine_lost", "message": "It died."}}'], 200, "It died."),
        (["<html>" + "x" * 300], 502, "<html>" + "x" * 194 + "…"),
        ([text("a")], 200, None),
    ],
)
def test_what_the_server_said_of_an_error_is_kept(lines: list[str], status: int, said: str | None) -> None:
    (outcome,) = against(Server(lines, status=status), count=1)
    assert outcome.message == said


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    params = LoadParams(url="http://127.0.0.1:9", model="m", count=2)
    assert [outcome.error for outcome in asyncio.run(run_load(params))] == ["connection", "connection"]


def test_prompts_depend_on_seed_and_place_only() -> None:
    params = LoadParams(url="u", model="m", prompt_words=30)
    assert prompt(params, 3) == prompt(params, 3) != prompt(params, 4)
    assert len(str(body(params, 3)["prompt"]).split()) == 30
