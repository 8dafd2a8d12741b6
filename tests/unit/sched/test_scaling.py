"""The front's look at its pools: numbers as of the look, a decision only when something changes (SPEC A12)."""

from tests.unit.sched.desk import Desk
from tests.unit.sched.router.views import llm

from headway.core.decisions import Decision
from headway.core.effects import Record, WakeAt
from headway.core.units import NS_PER_S
from headway.sched.fleet.scaling import ScalingParams
from headway.sched.nodes import FrontConfig

PARAMS = ScalingParams(interval_s=1.0, lead_s=0.0, slo_s=10.0, idle_s=60.0)


def desk() -> Desk:
    made = Desk(FrontConfig(scaling=PARAMS), replicas=("rep-a",))
    made.report("rep-a", waiting=3, waiting_prefill_tokens=1000, prefill_tokens_per_s=100.0)
    made.arrive(llm("req-1", prompt=1))
    return made


def look(made: Desk, at_s: float) -> list[str]:
    """Decisions of the look at a time."""
    made.now_ns = round(at_s * NS_PER_S)
    effects = made.fire("scale")
    assert [effect for effect in effects if isinstance(effect, WakeAt)]
    entries = [effect.entry for effect in effects if isinstance(effect, Record)]
    return [entry.chosen for entry in entries if isinstance(entry, Decision) and entry.kind == "scale"]


def wait_s(made: Desk) -> float:
    (figures,) = made.node.pool_figures()
    return figures.wait_s


# SPEC A5, A12
def test_the_wait_is_that_of_now_and_not_of_the_last_report() -> None:
    made = desk()
    look(made, 1.0)
    first = wait_s(made)
    look(made, 5.0)
    assert wait_s(made) <= first - 3.0


def test_a_change_is_told_once() -> None:
    made = desk()
    assert look(made, 1.0) == ["grow"]
    assert look(made, 2.0) == []
