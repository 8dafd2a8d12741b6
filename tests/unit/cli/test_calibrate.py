from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.calibrate import app, parse_layout
from headway.core.errors import ConfigError
from headway.cost.fitted import parse_cost_file

RUN = CliRunner()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        f"{batch},{context},0,{5 + 0.1 * batch + 2e-5 * batch * context}"
        for batch in range(1, 33)
        for context in (64, 512)
    ]
    path = tmp_path / "steps.csv"
    path.write_text("batch,context,tokens,time_ms\n" + "\n".join(rows) + "\n")
    return path


def test_a_table_becomes_a_cost_file_with_its_error(table: Path, tmp_path: Path) -> None:  # SPEC J3
    out = tmp_path / "cost.json"
    options = ["--model", "m", "--device", "d", "--engine", "vllm", "--engine-version", "0.19.0", "--layout", "tp=2"]
    result = RUN.invoke(app, [str(table), "--out", str(out), *options])
    assert result.exit_code == 0, result.output
    file = parse_cost_file(out.read_bytes(), "cost.json")
    assert file.coefficients.base_ns == pytest.approx(5e6, rel=1e-3)
    assert file.coefficients.kv_ns == pytest.approx(20, rel=1e-3)
    assert (file.stamp.engine, file.stamp.engine_version, file.stamp.layout) == ("vllm", "0.19.0", {"tp": 2})
    assert file.source.startswith("table steps.csv ")
    assert "held out" in result.output
    assert "token_ns is not identified" in result.output


# vidur#60: unclear which engine is simulated.
def test_a_table_without_stamp_is_refused(table: Path, tmp_path: Path) -> None:
    result = RUN.invoke(app, [str(table), "--out", str(tmp_path / "c.json"), "--engine", "vllm"])
    assert isinstance(result.exception, ConfigError)
    assert "--model and --device and --engine-version" in str(result.exception)
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("text", ["tp", "tp=0", "xp=2", "tp=two"])
def test_a_layout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--layout"):
        parse_layout(text)


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = RUN.invoke(app, [str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "c.json")])
    assert "no.jsonl" in str(result.exception)
