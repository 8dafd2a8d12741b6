from collections.abc import Callable

from headway.core.events import Event, StepDone, StepFailed
from headway.core.plans import DenoisePlan, DenoiseRow, StepPlan, StepTiming
from headway.core.units import Ns
from headway.sim.executor import SimExecutor
from headway.sim.truth import LinearTruth

TRUTH = LinearTruth(base_ns=100, token_ns=10, kv_ns=1.0, host_base_ns=30, host_row_ns=1.0, pixel_ns=2.0)


def executor() -> tuple[SimExecutor, list[tuple[Ns, Callable[[Ns], Event | None]]]]:
    due: list[tuple[Ns, Callable[[Ns], Event | None]]] = []
    return SimExecutor(TRUTH, None, lambda at_ns, make: due.append((at_ns, make))), due


def plan(step: int, decodes: int = 5, kv_tokens: int = 50, bucket: int = 0) -> StepPlan:
    return StepPlan(step, step - 1, "decode", decodes=decodes, kv_tokens=kv_tokens, bucket=bucket)


def timings(due: list[tuple[Ns, Callable[[Ns], Event | None]]]) -> list[StepTiming]:
    events = [make(at_ns) for at_ns, make in due]
    return [event.timing for event in events if isinstance(event, StepDone)]


def test_a_step_starts_when_plan_and_device_are_both_ready() -> None:  # SPEC E2
    run, due = executor()
    run.run_step(plan(1), 0)
    run.run_step(plan(2), 0)
    first, second = timings(due)
    assert (first.launched_ns, first.started_ns, first.done_ns, first.idle_gap_ns) == (35, 35, 235, 35)
    assert (second.launched_ns, second.started_ns, second.idle_gap_ns) == (70, 235, 0)
    assert (first.overlapped_ns, second.overlapped_ns) == (0, 35)


def test_planning_after_the_device_went_idle_is_a_gap_and_no_overlap() -> None:
    run, due = executor()
    run.run_step(plan(1), 0)
    run.run_step(plan(2), 235)
    second = timings(due)[1]
    assert (second.idle_gap_ns, second.overlapped_ns) == (35, 0)


def test_a_padded_step_pays_for_its_bucket() -> None:
    assert TRUTH.step_ns(plan(1, bucket=9)) - TRUTH.step_ns(plan(1)) == 40


def test_a_failure_voids_the_steps_behind_it() -> None:
    run, due = executor()
    run.run_step(plan(1), 0)
    run.run_step(plan(2), 0)
    run.fail_next()
    events = [make(at_ns) for at_ns, make in due]
    assert isinstance(events[0], StepFailed)
    assert events[1] is None


def test_jitter_is_bounded_and_repeatable() -> None:  # SPEC J6
    noisy = LinearTruth(base_ns=1000, token_ns=0, kv_ns=0, jitter=0.2, seed=3)
    times = [noisy.step_ns(plan(step)) for step in range(200)]
    assert times == [noisy.step_ns(plan(step)) for step in range(200)]
    assert 800 <= min(times) < 900 < 1100 < max(times) <= 1200


def test_a_denoise_batch_runs_its_steps_one_after_the_other() -> None:
    rows = (DenoiseRow(1, 0, 3, 9), DenoiseRow(2, 4, 2, 9))
    assert TRUTH.denoise_ns(DenoisePlan(1, 0, rows, 4, 4)) == (100 + 2 * 16 * 2) * 3
