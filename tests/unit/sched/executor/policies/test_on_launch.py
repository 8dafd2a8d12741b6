from headway.sched.executor.policies.on_launch import OnLaunch
from headway.sched.executor.protocol import InFlight


def test_plans_now_whatever_runs() -> None:
    assert OnLaunch(OnLaunch.Params()).plan_at(70, InFlight(1, 50, 40, 1_000_000, 10)) == 70
