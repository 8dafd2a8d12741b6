import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.unit.adapters.telemetry.records import record
from typer.testing import CliRunner

from headway.adapters.telemetry.jsonl import evidence_lines
from headway.cli.trace import app

RUN = CliRunner()


class Server(BaseHTTPRequestHandler):
    asked: list[tuple[str, str | None]]
    status = 200
    body = json.dumps({"traceEvents": [{"name": "x"}]}).encode()

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("authorization")))
        body = self.body
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Server]]]:
    kind = type("Answering", (Server,), {"asked": []})
    running = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", kind
    running.shutdown()
    thread.join()
    running.server_close()


def test_export_writes_what_the_server_tells(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    # SPEC I4
    url, kind = server
    output = tmp_path / "t.json"
    result = RUN.invoke(
        app, ["export", "--url", url, "--seconds", "5", "-o", str(output)], env={"HEADWAY_API_KEY": "k"}
    )
    assert result.exit_code == 0, result.output
    assert kind.asked == [("/debug/trace?seconds=5", "Bearer k")]
    assert json.loads(output.read_text()) == {"traceEvents": [{"name": "x"}]}


def test_json_lines_are_written_as_they_come(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    # SPEC I4
    url, kind = server
    kind.body = evidence_lines([record("req-1"), record("req-2")])
    output = tmp_path / "e.jsonl"
    result = RUN.invoke(app, ["export", "--url", url, "--format", "jsonl", "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert kind.asked == [("/debug/trace?seconds=60&format=jsonl", None)]
    assert output.read_bytes() == kind.body
    assert "2 requests" in result.output


def test_parquet_has_a_row_for_every_line(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    # SPEC I4
    parquet = pytest.importorskip("pyarrow.parquet")
    url, kind = server
    kind.body = evidence_lines([record("req-1"), record("req-2")])
    output = tmp_path / "e.parquet"
    result = RUN.invoke(app, ["export", "--url", url, "--format", "parquet", "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert parquet.read_table(output).column("request").to_pylist() == ["req-1", "req-2"]


def test_a_refusal_is_a_failure_and_writes_nothing(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, kind = server
    kind.status = 401
    output = tmp_path / "t.json"
    result = RUN.invoke(app, ["export", "--url", url, "-o", str(output)])
    assert (result.exit_code, output.exists()) == (1, False)
    assert "401" in result.output


def test_steps_are_written_as_they_come(server: tuple[str, type[Server]], tmp_path: Path) -> None:  # SPEC J3
    url, kind = server
    kind.body = b'{"step": 1}\n{"step": 2}\n'
    output = tmp_path / "s.jsonl"
    result = RUN.invoke(app, ["export", "--url", url, "--format", "steps", "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert kind.asked == [("/debug/trace?seconds=60&format=steps", None)]
    assert output.read_bytes() == kind.body
    assert "2 steps" in result.output


def test_no_server_is_a_failure_with_its_address(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["export", "--url", "http://127.0.0.1:1", "-o", str(tmp_path / "t")])
    assert result.exit_code == 1
    assert "no server at http://127.0.0.1:1" in result.output


@pytest.mark.parametrize("shape", ["chrome", "jsonl", "steps"])
@pytest.mark.parametrize("status", [200, 501])
def test_a_foreign_server_is_one_line(
    server: tuple[str, type[Server]], tmp_path: Path, status: int, shape: str
) -> None:
    url, kind = server
    kind.status, kind.body = status, b"<!DOCTYPE html>\n<html>\n<p>Error response</p>\n</html>"
    output = tmp_path / "t"
    result = RUN.invoke(app, ["export", "--url", url, "--format", shape, "-o", str(output)])
    assert (result.exit_code, output.exists(), len(result.output.splitlines())) == (1, False, 1)
    assert f"answered {status}" in result.output
    assert "<" not in result.output


def test_an_address_without_scheme_is_understood(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, kind = server
    result = RUN.invoke(app, ["export", "--url", url.removeprefix("http://"), "-o", str(tmp_path / "t")])
    assert result.exit_code == 0, result.output
    assert len(kind.asked) == 1
