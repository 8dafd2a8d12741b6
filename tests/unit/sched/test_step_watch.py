from headway.core.effects import Effect, WakeAt
from headway.sched.step_watch import STUCK_TIMER, StepWatch


def timers(out: list[Effect]) -> list[int]:
    found = [effect.at_ns for effect in out if isinstance(effect, WakeAt) and effect.timer == STUCK_TIMER]
    out.clear()
    return found


def test_one_timer_serves_all_plans_and_looks_again_at_the_one_that_runs() -> None:
    watch, out = StepWatch(), list[Effect]()
    watch.begin(100, 0, out)
    assert timers(out) == [100]
    watch.end()
    watch.begin(100, 50, out)
    assert timers(out) == []
    assert watch.look(100, out) is None
    assert timers(out) == [150]
    assert watch.look(150, out) == 50


# SPEC F8
def test_a_plan_that_may_take_less_than_the_one_before_is_looked_at_sooner() -> None:
    watch, out = StepWatch(), list[Effect]()
    watch.begin(1000, 0, out)
    watch.end()
    assert timers(out) == [1000]
    watch.begin(100, 50, out)
    assert timers(out) == [150]
    assert watch.look(150, out) == 50


def test_nobody_is_stuck_who_does_nothing_or_may_take_for_ever() -> None:
    watch, out = StepWatch(), list[Effect]()
    watch.begin(None, 0, out)
    assert timers(out) == []
    watch.begin(10, 0, out)
    watch.end()
    assert watch.look(10, out) is None
    assert timers(out) == [10]
    watch.begin(10, 20, out)
    assert timers(out) == [30]
