"""`headway route explain`."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from headway.cli import route
from headway.cli.servers import ServerError
from headway.core.decisions import Explained
from headway.core.errors import ConfigError

ANSWER = route.Answer(
    "m",
    "CostAware",
    100,
    20,
    "queue",
    "no replica has room",
    [
        Explained("rep-0", 0, "why", 1.25, 0.5, 1.0, {"queue": 0.5, "prefill": 0.75, "slo": 0.0}, 64, queued_tokens=9),
        Explained("rep-1", None, "it is draining"),
    ],
)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, answer: bytes | ServerError) -> tuple[int, str, list[bytes]]:
    sent: list[bytes] = []

    def ask(url: str, path: str, api_key: str | None, sent_body: bytes) -> bytes:
        assert (url, path) == ("http://127.0.0.1:8000", "/v1/route/explain")
        sent.append(sent_body)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    monkeypatch.setattr(route, "ask", lambda url, path, key, sent: ask(url, path, key, sent))
    done = CliRunner().invoke(route.app, ["explain", *arguments])
    return done.exit_code, done.output, sent


def test_a_file_with_a_body_is_asked_at_the_endpoint_that_takes_it() -> None:
    assert route.question(b'{"messages": []}', "f").endpoint == "/v1/chat/completions"
    assert route.question(b'{"prompt": "x"}', "f").endpoint == "/v1/completions"
    whole = route.question(b'{"endpoint": "/v1/completions", "body": {"prompt": "x"}}', "f")
    assert (whole.endpoint, bytes(whole.body)) == ("/v1/completions", b'{"prompt": "x"}')


@pytest.mark.parametrize("text", [b"[]", b"{", b"{}", b'{"endpoint": "/x", "body": {}}'])
def test_what_is_no_request_is_refused_by_the_files_name(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"q\.json is no request"):
        route.question(text, "q.json")


def test_the_table_has_a_column_per_part_that_counts_and_a_reason_for_who_is_no_candidate() -> None:
    text = route.text(ANSWER)
    assert "admission: queue (no replica has room)" in text
    head = next(line for line in text.splitlines() if "replica" in line and "score s" in line)
    assert "queue s" in head
    assert "prefill s" in head
    assert "slo" not in head
    assert "it is draining" in text
    assert "1.25" in text


def test_a_pipe_gets_a_line_per_replica_and_80_columns_a_block(  # SPEC J5
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "q.json"
    file.write_text('{"prompt": "x"}')
    monkeypatch.setenv("COLUMNS", "80")
    _, piped, _ = run(monkeypatch, str(file), answer=msgspec.json.encode(ANSWER))
    assert "…" not in piped
    assert [line.split()[0] for line in piped.splitlines()[2:]] == ["replica", "rep-0", "rep-1"]
    blocks = route.text(ANSWER, 80).split("\n\n")[1:]
    assert [len(block.splitlines()) for block in blocks] == [11, 11 + 1]
    assert all(len(line) <= 80 for block in blocks for line in block.splitlines())
    assert "reason         it is draining" in blocks[1]


def test_a_policy_that_scores_in_units_of_its_own_gets_none() -> None:
    assert "score s" not in route.text(msgspec.structs.replace(ANSWER, policy="LeastTokens"))


def test_the_answer_can_be_had_as_it_came(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_text('{"prompt": "x"}')
    said = msgspec.json.encode(ANSWER)
    code, output, sent = run(monkeypatch, str(file), "--json", answer=said)
    assert (code, output.strip()) == (0, said.decode())
    assert msgspec.json.decode(sent[0]) == {"endpoint": "/v1/completions", "body": {"prompt": "x"}}


def test_a_server_that_refuses_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_text('{"prompt": "x"}')
    code, output, _ = run(monkeypatch, str(file), answer=ServerError("it answered 403"))
    assert (code, output.strip()) == (1, "headway route explain: it answered 403")


def test_a_length_that_nobody_knows_yet_is_not_told_as_a_prediction() -> None:
    words = "20 output tokens planned with at admission (how many are likely is not known yet: a policy may count with"
    assert words in route.text(ANSWER)
    assert ", 1 output token planned with" in route.text(msgspec.structs.replace(ANSWER, output_tokens=1))
    known = msgspec.structs.replace(ANSWER, output_tokens_likely=20)
    assert "20 output tokens planned with, policy" in route.text(known)
    picture = msgspec.structs.replace(ANSWER, output_tokens=0)
    assert "100 prompt tokens, no output tokens, policy" in route.text(picture)
