"""What `make acceptance` runs notices a server that misbehaves; the server here is a script of ten lines."""

import sys
from pathlib import Path

import pytest
from tools.acceptance import Failure, modalities, run_checks, serving, talk, two_tenants

SERVER = """
import http.server, json, signal, sys
MODE = {mode!r}
if MODE == "dies at once":
    sys.exit("no model here")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{"data": [{{"id": "m", "modalities": ["image" if MODE == "paints" else "text"]}}]}})
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.reply({{"choices": [{{"message": {{"content": "" if MODE == "says nothing" else "Paris"}}}}]}})
    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        pass
def leave(*args):
    if MODE == "leaves with a traceback":
        print("Traceback (most recent call last):", file=sys.stderr)
    sys.exit(3 if MODE == "leaves with 3" else 0)
signal.signal(signal.SIGTERM, leave)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""


def command(folder: Path, mode: str) -> list[str]:
    script = folder / "server.py"
    script.write_text(SERVER.format(mode=mode))
    return [sys.executable, str(script)]


def test_a_good_server_passes(tmp_path: Path) -> None:
    with serving(command(tmp_path, "well"), tmp_path) as base:
        assert modalities(base) == {"text"}
        talk(base)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("dies at once", "no model here"),
        ("leaves with 3", "exit code 3 after SIGTERM"),
        ("leaves with a traceback", "printed a traceback"),
        ("says nothing", "/v1/chat/completions answered 200"),
    ],
)
def test_a_bad_server_is_noticed(mode: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=words), serving(command(tmp_path, mode), tmp_path) as base:
        talk(base)


def test_a_failing_check_is_reported(tmp_path: Path) -> None:
    (tmp_path / "llm_api.py").write_text("import sys\nassert '--other-key' in sys.argv\nsys.exit(4)\n")
    with serving(command(tmp_path, "well"), tmp_path) as base:
        assert run_checks(tmp_path, base, None) == ["llm_api.py ended with 4"]


def test_pictures_are_checked_where_there_are_no_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "llm_api.py").write_text("raise SystemExit(9)\n")
    (tmp_path / "diffusion_api.py").write_text("import sys\nassert sys.argv[-2:] == ['--only', 'image:']\n")
    with serving(command(tmp_path, "paints"), tmp_path) as base:
        assert run_checks(tmp_path, base, None) == []
        assert "no model here is listed for video" in capsys.readouterr().out


def test_missing_checks_are_a_skip_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks(tmp_path / "absent", "http://127.0.0.1:9", None) == []
    assert "skip: no folder" in capsys.readouterr().out


def test_tenants_are_configured_by_digest_only() -> None:
    text = two_tenants()
    assert text.count("sha256:") == 2
    assert "sk-test" not in text
