"""The configuration and the server that `headway doctor` looks at."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.adapters.gateway.replicas import shown
from headway.cli import doctor as command
from headway.cli.doctor_replicas import replica_words
from headway.cli.doctor_server import Place, place, place_words, port_free, setting
from headway.core.ids import NodeId
from headway.core.reports import PreparationFailure, ReplicaFigures, ShapePreparation
from headway.core.units import NS_PER_S

UNREADY = {"error": {"message": "Not ready: tiny-wan is loading."}}


@contextmanager
def answering(answers: dict[str, tuple[int, object]]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


HEADWAY: dict[str, tuple[int, object]] = {
    "/version": (200, {"version": "0.1.0"}),
    "/v1/models": (200, {"data": [{"id": "smol"}, {"id": "tiny"}]}),
    "/v1/replicas": (200, {"data": []}),
}


# SPEC M1
def test_a_headway_server_is_told_from_something_else() -> None:
    with answering({**HEADWAY, "/ready": (200, {})}) as port:
        found = place(None, port)
        assert found == Place(f"http://127.0.0.1:{port}", is_free=False, serves=("smol", "tiny"))
        assert place_words(found, is_asked=False) == (
            "ok",
            f"{found.url}: a Headway server, which serves smol, tiny",
            "",
        )
        assert place(f"localhost:{port}/v1", 1).serves == ("smol", "tiny")
    with answering({"/": (200, "hello")}) as port:
        assert place_words(place(None, port), is_asked=False)[:2] == (
            "note",
            f"{port} is taken by something else than Headway",
        )


def test_a_server_that_is_not_ready_says_what_it_waits_for() -> None:
    with answering({**HEADWAY, "/ready": (503, UNREADY)}) as port:
        assert place_words(place(None, port), is_asked=False)[::2] == ("note", "Not ready: tiny-wan is loading.")


# SPEC M2
def test_a_server_that_lacks_its_job_table_says_so() -> None:
    told = {"status": "ready", "degraded": ["job table does not answer", "object store does not answer"]}
    with answering({**HEADWAY, "/ready": (200, told)}) as port:
        assert place_words(place(None, port), is_asked=False)[::2] == (
            "note",
            "degraded: job table does not answer, object store does not answer; the server's log says why",
        )


# SPEC E1, F8
def test_what_the_replicas_of_a_server_prepare_is_told_and_how_their_memory_came_to_rest() -> None:
    figures = ReplicaFigures(
        NodeId("rep-1"),
        "ready",
        ("tiny-flux",),
        settle_passes=2,
        reserved_bytes=64 << 20,
        preparing=(
            ShapePreparation(96, 64, 1, 2, "running", 1, 2, 3),
            ShapePreparation(96, 64, 1, 4, "queued", 0, 2, 0),
        ),
        unprepared=(PreparationFailure(128, 128, 1, 1, "no room", NS_PER_S),),
    )
    cpu = ReplicaFigures(NodeId("rep-0"), "ready", ("smol",), settle_passes=0)
    loading = ReplicaFigures(NodeId("rep-2"), "loading", ("film",), reason="rep-2 has been in phase 'load' for 2 s")
    listed = {"data": [shown(one, 31 * NS_PER_S) for one in (cpu, figures, loading)]}
    with answering({**HEADWAY, "/ready": (200, {}), "/v1/replicas": (200, listed)}) as port:
        found = place(None, port)
    assert [replica_words(one) for one in found.replicas] == [
        ("ok", "rep-0 (smol) is ready; no device allocator that could settle", ""),
        (
            "note",
            "rep-1 (tiny-flux) is ready; its allocator settled at repeated pass 2 with 64 MiB; "
            "prepares 64x96 by 2, 1 of 2 slices (3 wait for it) | 64x96 by 4, queued",
            "preparing 128x128 failed 30 s ago: no room",
        ),
        ("ok", "rep-2 (film) is loading; rep-2 has been in phase 'load' for 2 s", ""),
    ]


def test_replicas_that_only_an_admin_may_see_are_said_to_be_hidden() -> None:
    refused = {"error": {"message": "Only an admin key may look at replicas."}}
    with answering({**HEADWAY, "/ready": (200, {}), "/v1/replicas": (403, refused)}) as port:
        found = place(None, port)
    assert found.replicas == ()
    assert "answered 403: Only an admin key" in found.hidden


def test_where_nobody_listens_is_free_or_a_server_is_missed() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.listen()
        assert not port_free(port)
    at = place(None, port)
    assert place_words(at, is_asked=False) == ("ok", f"{port} is free", "")
    assert place_words(at, is_asked=True)[:2] == ("note", f"{at.url}: no Headway server answers")


def test_the_port_is_the_configurations_and_what_it_asks_of_a_cpu_in_vain_is_told(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(
        '[server]\nport = 8431\n[engine]\ndevice = "cpu"\n[executor.buckets]\ngraph_mode = "full"\nrows = [1, 2]\n'
    )
    found = setting(path, [], 8000)
    (words,) = found.adjusted
    assert found.port == 8431
    assert words.startswith("executor.buckets.graph_mode = none (full was asked for")
    assert setting(path, ["server.port=9"], 8000).port == 9
    assert setting(None, [], 1234).adjusted == ()
    assert "nope" in (setting(None, ["scheduler.order.type=nope"], 8000).error or "")


@pytest.mark.parametrize(
    ("arguments", "environment", "seen"),
    [
        ([], {}, (None, None)),
        (["--port", "8431"], {}, (8431, None)),
        ([], {"HEADWAY_URL": "http://h:1"}, (None, "http://h:1")),
        (["--port", "8431"], {"HEADWAY_URL": "http://h:1"}, (8431, None)),
    ],
)
def test_what_is_said_of_the_address_is_looked_at(
    arguments: list[str],
    environment: dict[str, str],
    seen: tuple[int | None, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int | None, str | None]] = []

    def gather(config: Path | None, assignments: list[str], port: int | None, url: str | None) -> command.Facts:
        asked.append((port, url))
        raise SystemExit(0)

    monkeypatch.delenv("HEADWAY_URL", raising=False)
    monkeypatch.setattr(command, "gather", gather)
    CliRunner().invoke(command.app, arguments, env=environment)
    assert asked == [seen]


@pytest.mark.parametrize(
    "words",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{", b"HTTP/1.1 200 OK\r\n\r\n[1]"],
)
def test_whatever_listens_there_is_something_else(words: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            with listening.accept()[0] as client:
                client.recv(4096)
                client.sendall(words)

        speaker = threading.Thread(target=speak)
        speaker.start()
        found = place(None, listening.getsockname()[1])
        speaker.join()
    assert found.serves is None
    assert not found.is_free
