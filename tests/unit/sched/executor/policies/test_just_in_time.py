from headway.core.units import NS_PER_MS
from headway.sched.executor.policies.just_in_time import JustInTime
from headway.sched.executor.protocol import InFlight

POLICY = JustInTime(JustInTime.Params(margin_ms=1.0))
STEP, PLAN = 10 * NS_PER_MS, 2 * NS_PER_MS


def test_plans_as_late_as_planning_and_margin_allow() -> None:  # SPEC B6
    flight = InFlight(1, oldest_planned_ns=0, last_done_ns=None, step_ns=STEP, plan_ns=PLAN)
    assert POLICY.plan_at(0, flight) == 7 * NS_PER_MS


def test_a_step_runs_from_the_end_of_the_one_before() -> None:
    flight = InFlight(1, oldest_planned_ns=0, last_done_ns=4 * NS_PER_MS, step_ns=STEP, plan_ns=PLAN)
    assert POLICY.plan_at(0, flight) == 11 * NS_PER_MS


def test_an_idle_device_or_an_unknown_step_time_means_now() -> None:
    assert POLICY.plan_at(5, InFlight(0, None, 0, STEP, PLAN)) == 5
    assert POLICY.plan_at(5, InFlight(1, 0, None, 0, 0)) == 5
