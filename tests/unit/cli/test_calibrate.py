from pathlib import Path

import pytest
from tests.unit.workload.test_evidence_logs import line
from typer.testing import CliRunner

from headway.cli.calibrate import app, kind_of, parse_layout
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


SLICE = Path(__file__).parents[2] / "sim/vllm_llama31_8b"


def test_a_log_of_requests_is_fitted_with_what_meta_says(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    options = ["--out", str(out), "--device", "RTX PRO 6000", "--evaluations", "6"]
    result = RUN.invoke(app, [str(SLICE / "requests.jsonl"), *options])
    assert result.exit_code == 0, result.output
    stamp = parse_cost_file(out.read_bytes(), "cost.json").stamp
    assert (stamp.engine, stamp.engine_version, stamp.model) == ("vllm", "0.19.0", "meta-llama/Llama-3.1-8B")
    assert all(metric in result.output for metric in ("ttft", "tpot", "e2e"))


@pytest.mark.parametrize(
    ("options", "words"), [([], "give --device"), (["--device", "d", "--model", "m"], "leave them out")]
)
def test_what_meta_says_is_not_said_twice_and_the_device_once(tmp_path: Path, options: list[str], words: str) -> None:
    result = RUN.invoke(app, [str(SLICE / "requests.jsonl"), "--out", str(tmp_path / "c.json"), *options])
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("line", "words"), [(b'{"other": {}}', "no log that is known"), (b"hello", "no log that is known"), (b"", "no log")]
)
def test_what_nothing_can_be_fitted_to_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind_of(Path("x.jsonl"), line)


# Frontier#9: co-located engines in one log are not one engine.
def test_a_log_of_several_schedulers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_bytes((SLICE / "requests.jsonl").read_bytes())
    meta = '{"vllm_version":"0.19.0","engine_kwargs":{"model":"m","data_parallel_size":2}}'
    (tmp_path / "meta.json").write_text(meta)
    options = ["--out", str(tmp_path / "c.json"), "--device", "d"]
    result = RUN.invoke(app, [str(tmp_path / "requests.jsonl"), *options])
    assert "several schedulers" in str(result.exception)


def test_evidence_is_fitted_with_the_scheduler_of_its_server(tmp_path: Path) -> None:
    path, config, out = tmp_path / "e.jsonl", tmp_path / "headway.toml", tmp_path / "c.json"
    path.write_bytes(b"".join(line(number) for number in range(40)))
    config.write_text("[scheduler]\nmax_seqs = 4\n")
    options = ["--out", str(out), "--model", "m", "--device", "d", "--evaluations", "6", "--config", str(config)]
    result = RUN.invoke(app, [str(path), *options])
    assert result.exit_code == 0, result.output
    file = parse_cost_file(out.read_bytes(), "c.json")
    assert file.stamp.engine == "headway"
    assert file.ranges.decodes <= 4
    assert "40 requests of rep-0" in file.notes[-1]


def test_a_configuration_without_evidence_is_refused(table: Path, tmp_path: Path) -> None:
    options = ["--out", str(tmp_path / "c.json"), "--model", "m", "--device", "d", "--config", str(tmp_path / "h.toml")]
    assert "--config tells the scheduler" in str(RUN.invoke(app, [str(table), *options]).exception)


def test_a_folder_is_answered_with_the_log_in_it(table: Path, tmp_path: Path) -> None:
    def said() -> str:
        return str(RUN.invoke(app, [str(tmp_path), "--out", str(tmp_path / "c.json")]).exception)

    assert f"name the log in it: {table} holds a table of steps" in said()
    table.unlink()
    assert "it holds none" in said()
    (tmp_path / "requests.parquet").write_bytes(b"")
    assert "a simulated run" in said()
