import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headway.bench.load import LoadParams, Progress, load
from headway.bench.outcome import Outcome
from headway.bench.summary import Targets, summarise
from headway.cli import main
from headway.cli.bench import hints, loop_line, progress_line

CHUNK = json.dumps({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


class Server(BaseHTTPRequestHandler):
    models: tuple[str, ...]
    asked: list[str]
    is_foreign = False
    answers_max = 1000
    is_over: threading.Event

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": name} for name in self.models]}), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body["model"])
        if len(self.asked) > self.answers_max:
            self.is_over.wait(60)
            return
        self._answer(200, f"data: {CHUNK}\n\ndata: [DONE]\n\n", "text/event-stream")

    def _answer(self, status: int, text: str, kind: str) -> None:
        if self.is_foreign:
            status, text, kind = 501, "<!DOCTYPE html>\n<p>Unsupported</p>", "text/html"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Server]]]:
    kind = type("Answering", (Server,), {"asked": [], "models": ("only",), "is_over": threading.Event()})
    running = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"127.0.0.1:{running.server_port}", kind
    kind.is_over.set()
    running.shutdown()
    thread.join()
    running.server_close()


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    return stopped.value.code


def test_the_only_listed_model_is_asked_for(
    server: tuple[str, type[Server]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # SPEC K1
    address, kind = server
    out = tmp_path / "run.json"
    assert run(f"{address}/v1", "--requests", "3", "--api-key", "secret", "--out", str(out)) == 0
    told = capsys.readouterr()
    assert kind.asked == ["only"] * 3
    assert "3 of 3 completed" in told.out
    assert "closed loop, 4 under way at any time" in told.out
    stored = json.loads(out.read_text())
    assert (stored["load"]["url"], stored["load"]["model"]) == (f"http://{address}", "only")
    assert (stored["summary"]["completed"], stored["load"]["api_key"]) == (3, None)


@pytest.mark.parametrize(("models", "said"), [(("a", "b"), "lists a, b; name one"), ((), "lists no model; name one")])
def test_a_choice_of_models_is_not_made_for_the_user(
    server: tuple[str, type[Server]], models: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address, kind = server
    kind.models = models
    assert run(address, "--requests", "1") == 2
    assert said in capsys.readouterr().err
    assert kind.asked == []


def test_a_name_that_is_not_listed_is_tried_and_the_nearest_named(
    server: tuple[str, type[Server]], capsys: pytest.CaptureFixture[str]
) -> None:
    address, kind = server
    assert run(address, "--model", "Onyl", "--requests", "1") == 0
    assert kind.asked == ["Onyl"]
    assert "does not list 'Onyl'; did you mean 'only'?" in capsys.readouterr().err


def test_a_foreign_server_is_named_as_such(
    server: tuple[str, type[Server]], capsys: pytest.CaptureFixture[str]
) -> None:
    address, kind = server
    kind.is_foreign = True
    assert run(address, "--requests", "1") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"headway bench: http://{address}/v1/models answered 501: a web page, so this is no such server"
    ]
    assert run(address, "--model", "m", "--requests", "1") == 1
    assert "is it an OpenAI-compatible server" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_has_ended(server: tuple[str, type[Server]], number: int) -> None:
    address, kind = server
    kind.answers_max = 2

    def interrupt(progress: Progress) -> None:
        if len(progress.outcomes) == 2 and progress.sent == 3:
            signal.raise_signal(number)

    params = LoadParams(url=f"http://{address}", model="m", count=9, concurrency=1)
    progress = load(params, interrupt, 0.01)
    assert [outcome.error for outcome in progress.ordered()] == [None, None]
    assert (progress.count, progress.sent) == (9, 3)


def test_no_server_is_one_line_before_any_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("127.0.0.1:1", "--model", "m") == 1
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert "no server at http://127.0.0.1:1" in told.err


@pytest.mark.parametrize(
    "arguments",
    [("--concurrency", "0"), ("--requests", "0"), ("--rate", "0"), ("--rate", "nan"), ("--max-tokens", "0")],
)
def test_a_load_of_nothing_is_a_usage_error(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("127.0.0.1:1", "--model", "m", *arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("rate", "concurrency", "said"),
    [
        (None, 3, "closed loop, 3 under way at any time"),
        (5.0, None, "open loop, 5 arrivals/s, no cap"),
        (5.0, 1, "open loop, 5 arrivals/s, at most 1 under way"),
    ],
)
def test_the_report_says_what_drove_the_load(rate: float | None, concurrency: int | None, said: str) -> None:
    assert said in loop_line(LoadParams(url="u", model="m", rate_per_s=rate, concurrency=concurrency))


def test_progress_is_one_line() -> None:
    progress = Progress(9, {0: Outcome(0, 1), 1: Outcome(0, 1, error="x")}, 5, 1)
    assert progress_line(progress) == "2 of 9 ended, 3 under way, 1 failed"


def test_a_hint_is_given_only_when_nothing_was_completed() -> None:
    failed, done = Outcome(0, 1, error="http_404"), Outcome(0, 1, (1,))
    assert len(hints(summarise([failed, failed], Targets()))) == 1
    assert hints(summarise([failed, done], Targets())) == []
