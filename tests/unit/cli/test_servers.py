import socket
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headway.cli import route, trace, usage
from headway.cli.servers import NoServerError, ask, said, server_url
from headway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8410", "http://localhost:8410"),
        ("http://localhost:8410/", "http://localhost:8410"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://gpu.example/v1/", "https://gpu.example"),
        ("https://gpu.example/llm/v1", "https://gpu.example/llm"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_taken_as_people_type_it(given: str, url: str) -> None:
    assert server_url(given) == url


@pytest.mark.parametrize("given", ["", "http://", "ftp://host", "host:port", "host:99999", "http://[::1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        server_url(given)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"error": {"message": "No key\\nwas sent."}}', "No key was sent."),
        (b"<!DOCTYPE HTML>\n<html><body>many\nlines", "a web page, so this is no such server"),
        (b"not\nfound", "not found"),
        (b"[1]", "[1]"),
        (b"", "nothing"),
    ],
)
def test_what_a_server_says_is_one_line(body: bytes, line: str) -> None:
    assert said(body) == line


@pytest.mark.parametrize(
    ("app", "words"), [(usage.app, ()), (trace.app, ("export",)), (route.app, ("explain", "q.json"))]
)
def test_no_server_at_the_default_address_names_how_another_is_given(
    app: typer.Typer, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.json").write_text('{"prompt": "x"}')
    monkeypatch.setattr("urllib.request.urlopen", refused)
    told = CliRunner().invoke(app, list(words)).output
    assert "no server at http://127.0.0.1:8000: refused; name another with --url or HEADWAY_URL" in told
    other = CliRunner().invoke(app, list(words), env={"HEADWAY_URL": "127.0.0.1:8431"}).output
    assert other.strip().endswith("no server at http://127.0.0.1:8431: refused")


def test_an_answer_that_is_cut_off_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def cut() -> None:
            with listening.accept()[0] as client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")

        killed = threading.Thread(target=cut)
        killed.start()
        with pytest.raises(NoServerError, match="broke off: IncompleteRead"):
            ask(f"http://127.0.0.1:{listening.getsockname()[1]}", "/v1/models", None)
        killed.join()


def refused(*_: object, **__: object) -> None:
    raise OSError("refused")
