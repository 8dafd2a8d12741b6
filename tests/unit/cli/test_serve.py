import json
import shlex

import pytest

from headway.cli.serve import ready_line


@pytest.mark.parametrize("model", ["m", "it's a model", 'say "hi"', "owner/name"])
def test_the_command_of_the_ready_line_survives_a_shell(model: str) -> None:
    # SPEC M1
    command = ready_line("http://127.0.0.1:8000", model).partition("try: ")[2]
    words = shlex.split(command)
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == model


def test_an_address_that_means_all_is_not_one_to_talk_to() -> None:
    line = ready_line("http://0.0.0.0:8000", "m")
    assert line.startswith("ready: http://0.0.0.0:8000 serves m;")
    assert "curl -s http://127.0.0.1:8000/" in line


def test_the_ready_line_is_one_line() -> None:
    assert "\n" not in ready_line("http://[::1]:80", "m")
