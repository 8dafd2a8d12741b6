import json
import shlex
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.serve import last_word, ready_line, sets_log_format

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("model", ["m", "it's a model", 'say "hi"', "owner/name"])
def test_the_command_of_the_ready_line_survives_a_shell(model: str) -> None:
    # SPEC M1
    command = ready_line("http://127.0.0.1:8000", [model]).partition("try: ")[2]
    words = shlex.split(command)
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == model


@pytest.mark.parametrize(
    ("makes", "route", "prompt"),
    [
        ("image", "images/generations", "a large red circle above a small blue square on a white background"),
        ("video", "videos", "a red circle moving right on a black background"),
    ],
)
def test_the_command_asks_a_model_for_what_the_models_of_this_repository_know(
    makes: str, route: str, prompt: str
) -> None:
    # SPEC M1
    command = ready_line("http://127.0.0.1:8000", ["m"], {"m": makes}).partition("try: ")[2]
    words = shlex.split(command)
    assert words[2] == f"http://127.0.0.1:8000/v1/{route}"
    assert json.loads(words[-1]) == {"model": "m", "prompt": prompt}
    assert f"`{prompt}`" in (ROOT / "models/tiny/README.md").read_text()


def test_an_address_that_means_all_is_not_one_to_talk_to() -> None:
    line = ready_line("http://0.0.0.0:8000", ["m"])
    assert line.startswith("ready: http://0.0.0.0:8000 serves m;")
    assert "curl -s http://127.0.0.1:8000/" in line


def test_a_reason_is_told_once() -> None:
    error = "replica rep-0 cannot start: watermark = 5000 leaves nothing"
    assert last_word(error, ["warm-up", "lost (incarnation 1): watermark = 5000 leaves nothing"]) == (
        "replica rep-0 cannot start"
    )
    assert last_word(error, ["warm-up"]) == error
    assert last_word("no replica is left", ["ready"]) == "no replica is left"


@pytest.mark.parametrize(
    ("text", "assignments", "is_set"),
    [
        ("", (), False),
        ("", ("server.port=1",), False),
        ("", ("telemetry.log_format=json",), True),
        ('[telemetry]\nlog_format = "json"\n', (), True),
    ],
)
def test_nothing_is_said_at_once_where_lines_may_have_to_be_json(
    text: str, assignments: tuple[str, ...], is_set: bool, tmp_path: Path
) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(text)
    assert sets_log_format(path, assignments) is is_set
    assert not sets_log_format(tmp_path / "absent.toml", ())


def test_the_ready_line_is_one_line() -> None:
    assert "\n" not in ready_line("http://[::1]:80", ["m"])


@pytest.mark.parametrize(
    "assignment",
    ["scheduler.order.type=nope", "scheduler.swap=true", "slo./v1/x.ttft_ms=3", "auth.keys=[{hash='a',tenant='b'}]"],
)
def test_what_cannot_work_ends_it_with_one_line_before_anything_starts(
    assignment: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # SPEC M1
    monkeypatch.setattr("headway.live.loop.run_loop", lambda _: pytest.fail("it went on to load"))
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--set", assignment])
    began, *lines = capsys.readouterr().err.splitlines()
    assert began.endswith("serve: starting Headway 0.1.0")
    assert (ended.value.code, len(lines)) == (2, 1)
    assert lines[0].startswith("headway serve: flag --set: ")


@pytest.mark.parametrize(("makes", "route"), [("image", "/v1/images/generations"), ("video", "/v1/videos")])
def test_a_model_that_paints_is_asked_to_paint(makes: str, route: str) -> None:
    line = ready_line("http://127.0.0.1:8000", ["painter", "m"], {"painter": makes})
    command = shlex.split(line.partition("try: ")[2])
    assert command[2].endswith(route)
    assert json.loads(command[-1])["model"] == "painter"
