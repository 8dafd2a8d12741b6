from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.adapters.models import DEFAULT_MODEL
from headway.cli.models import app

RUN = CliRunner()


def test_the_list_says_what_is_default_and_what_is_missing(tmp_path: Path) -> None:
    output = RUN.invoke(app, [], env={"HEADWAY_CACHE": str(tmp_path)}).output
    (line,) = [line for line in output.splitlines() if line.startswith(DEFAULT_MODEL)]
    assert "(default)" in line
    assert "not fetched" in line
    assert str(tmp_path) in line


def test_a_model_that_is_nowhere_is_a_failure_with_its_name() -> None:
    result = RUN.invoke(app, ["pull", "no such model"])
    assert result.exit_code == 1
    assert "no such model" in result.output


def test_list_is_the_same_as_no_command(tmp_path: Path) -> None:
    env = {"HEADWAY_CACHE": str(tmp_path)}
    listed, bare = RUN.invoke(app, ["list"], env=env), RUN.invoke(app, [], env=env)
    assert (listed.exit_code, listed.output) == (0, bare.output)


@pytest.mark.parametrize("given", ["smollm2-135m-instruct", "SmolLM2-135M"])
def test_a_name_that_is_almost_right_names_the_right_one(given: str) -> None:
    result = RUN.invoke(app, ["pull", given])
    assert result.exit_code == 1
    assert f"did you mean '{DEFAULT_MODEL}'?" in result.output


def test_the_catalogue_lists_models_with_source_and_date() -> None:
    output = RUN.invoke(app, ["--catalogue"]).output
    (line,) = [line for line in output.splitlines() if line.startswith("llama-3.1-8b")]
    assert line.split() == [
        "llama-3.1-8b",
        "8.03B",
        "8.03B",
        "128",
        "KiB",
        "2024-07",
        "meta-llama/Llama-3.1-8B-Instruct",
    ]
    assert "FLUX" in output or "flux" in output


def test_devices_and_links_are_listed_with_source_and_date() -> None:
    output = RUN.invoke(app, ["--devices"]).output
    (line,) = [line for line in output.splitlines() if line.startswith("H100-SXM")]
    assert line.split()[:7] == ["H100-SXM", "989", "3350", "85.5", "nvlink4", "2.5", "2023-03"]
    assert [line for line in output.splitlines() if line.startswith("nvlink4 ") and "Vidur" in line] != []


def test_the_tiny_models_that_serve_takes_are_listed_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "model_index.json").write_text("{}")
    monkeypatch.setattr("headway.live.config_tiny.tiny_folder", lambda: tmp_path)
    output = RUN.invoke(app, []).output
    (line,) = [line for line in output.splitlines() if line.startswith("tiny-flux")]
    assert str(tmp_path / "image") in line
    assert "`headway serve` takes the tiny models" in output
    monkeypatch.setattr("headway.live.config_tiny.tiny_folder", lambda: None)
    assert "tiny" not in RUN.invoke(app, []).output
