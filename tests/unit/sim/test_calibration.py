"""From step records to a cost file."""

import msgspec
import pytest

from headway.core.step_record import StepRecord
from headway.cost.fitted import Stamp
from headway.sim.calibration import Origin, calibrate_steps, samples_of, weights_ns

ORIGIN = Origin(Stamp(engine="e", engine_version="1", device="d", model="m"), "log", "2026-11-29")


def record(step: int, launched: int, started: int, done: int, gap: int = 0, rows: int = 1) -> StepRecord:
    return StepRecord("rep-1", step, "decode", rows, 10 * rows, 0, 0, 0, 0, launched, started, done, 3, 0, gap)


def test_steps_of_a_busy_device_add_up_to_the_time_that_passed() -> None:
    """Launches run ahead on a device that works by itself."""
    steps = [record(1, 0, 10, 100), record(2, 50, 100, 180), record(3, 120, 180, 300)]
    assert sum(sample.step_ns for sample in samples_of(steps)) == 300


def test_waiting_for_the_host_is_host_time_and_preparing_is_the_step_s() -> None:
    steps = [record(1, 0, 5, 100)]
    for number in range(2, 40):  # done 100 before; planning and the way to the executor take 20, preparing 5
        at = 125 * (number - 2) + 120
        steps.append(record(number, at, at + 5, at + 105, gap=25))
    found = samples_of(steps)
    assert {(sample.step_ns, sample.host_ns) for sample in found[1:]} == {(105, 20)}


def test_where_the_host_was_always_hidden_its_time_is_planning() -> None:
    steps = [record(n, 100 * n - 50, 100 * n, 100 * n + 100) for n in range(1, 30)]
    assert {sample.host_ns for sample in samples_of(steps)} == {3}


def test_a_restarted_replica_does_not_wait_for_its_former_life() -> None:
    steps = [record(7, 0, 5, 1_000), record(1, 400, 405, 460)]
    assert samples_of(steps)[1].step_ns == 60


def test_a_log_becomes_a_file_that_says_where_it_is_from() -> None:  # SPEC J3
    steps = []
    at = 0
    for number in range(200):
        rows = number % 7 + 1
        took = 1_000_000 + 50_000 * rows
        steps.append(record(number + 1, at, at, at + took, rows=rows))
        at += took
    file = calibrate_steps(steps, ORIGIN)
    predicted = [
        file.coefficients.base_ns + (file.coefficients.row_ns + 10 * file.coefficients.kv_ns) * n for n in (1, 7)
    ]
    assert predicted == pytest.approx([1_050_000, 1_350_000], rel=1e-6)
    assert (file.stamp, file.source, file.samples) == (ORIGIN.stamp, "log", 200)
    assert file.ranges.decodes == 7
    assert abs(file.held_out["step"].mean) < 1e-6


def test_no_step_takes_less_than_reading_the_weights() -> None:
    """Llama-3.1-8B: 7.5 billion parameters without the embedding, 16 bits each, at 1.79 TB/s."""
    stamp = Stamp(engine="vllm", engine_version="1", device="RTX-PRO-6000", model="meta-llama/Llama-3.1-8B")
    assert weights_ns(stamp) == pytest.approx(7.5e9 * 2 / 1.792e12 * 1e9, rel=0.01)
    two = msgspec.structs.replace(stamp, layout={"tp": 2})
    assert weights_ns(two) == weights_ns(stamp) / 2


def test_a_device_that_nobody_knows_has_no_floor() -> None:
    assert weights_ns(ORIGIN.stamp) == 0.0
