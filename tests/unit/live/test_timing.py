from collections import deque
from collections.abc import Iterator

from headway.core.events import StepDone, TimerFired
from headway.core.ids import TimerId
from headway.core.plans import StepTiming
from headway.live.timing import Handed, StepClock, runnable_since


def test_planning_while_the_device_runs_is_overlapped() -> None:
    # SPEC B6
    clock = StepClock()
    clock.complete(StepTiming(0, 0, 100), Handed(0, 0, 0))
    second = clock.complete(StepTiming(100, 100, 200), Handed(planned_ns=40, plan_ns=30, runnable_ns=0))
    assert (second.plan_ns, second.overlapped_ns, second.idle_gap_ns) == (30, 30, 0)


def test_planning_after_the_device_stopped_is_exposed_as_idle_gap() -> None:
    # SPEC B6
    clock = StepClock()
    clock.complete(StepTiming(0, 0, 100), Handed(0, 0, 0))
    second = clock.complete(StepTiming(131, 131, 200), Handed(planned_ns=101, plan_ns=30, runnable_ns=100))
    assert (second.plan_ns, second.overlapped_ns, second.idle_gap_ns) == (30, 0, 31)


def test_planning_beside_the_preparation_of_a_step_is_overlapped_too() -> None:
    # SPEC B6
    clock = StepClock()
    clock.complete(StepTiming(0, 40, 100), Handed(0, 0, 0))
    second = clock.complete(StepTiming(100, 140, 200), Handed(planned_ns=10, plan_ns=20, runnable_ns=0))
    assert (second.overlapped_ns, second.idle_gap_ns) == (20, 40)


def test_time_in_two_steps_counts_once() -> None:
    clock = StepClock()
    clock.complete(StepTiming(0, 0, 100), Handed(0, 0, 0))
    clock.complete(StepTiming(50, 100, 200), Handed(0, 0, 0))
    third = clock.complete(StepTiming(150, 200, 300), Handed(planned_ns=40, plan_ns=100, runnable_ns=0))
    assert third.overlapped_ns == 100


def test_planning_half_hidden_counts_half() -> None:
    clock = StepClock()
    clock.complete(StepTiming(0, 0, 100), Handed(0, 0, 0))
    second = clock.complete(StepTiming(120, 120, 200), Handed(planned_ns=90, plan_ns=20, runnable_ns=80))
    assert (second.overlapped_ns, second.idle_gap_ns) == (10, 20)


def test_an_idle_device_without_work_is_no_gap() -> None:
    clock = StepClock()
    clock.complete(StepTiming(0, 0, 100), Handed(0, 0, 0))
    later = clock.complete(StepTiming(1_010, 1_010, 1_100), Handed(planned_ns=1_000, plan_ns=5, runnable_ns=1_000))
    assert later.idle_gap_ns == 10


def test_work_of_a_finished_step_is_runnable_since_its_results_were_there() -> None:
    done = StepDone(150, "step-1", 1, (), (), StepTiming(0, 0, 100))
    assert runnable_since(done) == 100


def test_work_of_any_other_event_is_runnable_since_that_event() -> None:
    assert runnable_since(TimerFired(150, "t", TimerId("t"))) == 150


class CountedSteps(deque[tuple[int, int]]):
    looks = 0

    def __reversed__(self) -> Iterator[tuple[int, int]]:
        for step in super().__reversed__():
            self.looks += 1
            yield step


def test_only_steps_that_planning_can_have_run_beside_are_looked_at() -> None:
    # SPEC E1: it is done for every step, on a core that the next one computes on
    clock = StepClock()
    for step in range(7):
        clock.complete(StepTiming(100 * step, 100 * step, 100 * step + 100), Handed(0, 0, 0))
    clock._busy = steps = CountedSteps(clock._busy)
    last = clock.complete(StepTiming(700, 700, 800), Handed(planned_ns=610, plan_ns=20, runnable_ns=600))
    assert last.overlapped_ns == 20
    assert steps.looks == 2  # the one that ran, and the first that had ended before
