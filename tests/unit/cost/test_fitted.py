"""The cost file and the model that it holds."""

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.cost.fitted import (
    Coefficients,
    CostFile,
    HeldOut,
    LinearStep,
    Ranges,
    Stamp,
    format_cost_file,
    parse_cost_file,
)
from headway.cost.llm import StepShape

FILE = CostFile(
    stamp=Stamp(engine="vllm", engine_version="0.19.0", device="RTX", model="m", layout={"tp": 2}),
    source="log 1234",
    date="2026-11-29",
    coefficients=Coefficients(base_ns=100, row_ns=10, kv_ns=2, token_ns=5, pair_ns=1, host_base_ns=7, host_row_ns=3),
    ranges=Ranges(decodes=8, kv_tokens=1000, prefill_tokens=0, prefill_pairs=0),
    samples=30,
    held_out={"step": HeldOut(10, 0.01, 0.02)},
)


def test_a_file_reads_back_as_it_was() -> None:
    assert parse_cost_file(format_cost_file(FILE), "c.json") == FILE


def test_a_step_is_the_sum_of_its_parts() -> None:
    wide = LinearStep(msgspec.structs.replace(FILE, ranges=Ranges(9, 999, 99, 9999)))
    assert wide.step_ns(StepShape(3, 20, 4, 7)) == 100 + 30 + 40 + 20 + 7
    assert wide.host_ns(4) == 7 + 12


def test_memory_and_compute_may_overlap() -> None:
    overlapping = msgspec.structs.replace(FILE.coefficients, combine="max")
    assert overlapping.step_ns(StepShape(3, 20)) == 140
    assert overlapping.step_ns(StepShape(30, 20)) == 300


# aiconfigurator#1396, inference-sim#489: a model that answers for shapes it knows nothing about is silently far off.
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (StepShape(11, 900), "decodes = 11"),
        (StepShape(8, 1251), "kv_tokens = 1251"),
        (StepShape(8, 900, 1), "prefill_tokens = 1"),
    ],
)
def test_a_shape_far_outside_is_refused_by_name(shape: StepShape, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LinearStep(FILE).step_ns(shape)


def test_a_shape_a_little_outside_is_believed() -> None:
    assert LinearStep(FILE).step_ns(StepShape(10, 1250)) == 100 + 100 + 2500
    assert LinearStep(FILE).outside(StepShape(10, 1250)) == ""


# vidur#60: it must be clear which engine is simulated.
@pytest.mark.parametrize("field", ["engine", "engine_version", "device", "model"])
def test_a_file_without_its_stamp_is_refused(field: str) -> None:
    raw = msgspec.json.decode(format_cost_file(FILE))
    del raw["stamp"][field]
    with pytest.raises(ConfigError, match=f"c.json is no cost file.*{field}"):
        parse_cost_file(msgspec.json.encode(raw), "c.json")


def test_negative_times_are_refused() -> None:
    raw = format_cost_file(FILE).replace(b'"kv_ns": 2', b'"kv_ns": -2')
    with pytest.raises(ConfigError, match="kv_ns"):
        parse_cost_file(raw, "c.json")
