"""Least slack first."""

from tests.property.rig import Rig

from headway.core.request import Slo
from headway.cost.llm import StepCost, StepCostParams

MS = 1_000_000


def rig(**params: object) -> Rig:
    """One seat; a prompt token costs 1 ms."""
    belief = StepCost(StepCostParams(token_ns=MS, pair_ns=0, learn=False))
    return Rig(belief=belief, order="least_slack", order_params=params, max_seqs=1, async_depth=1)


# SPEC B3
def test_the_earlier_deadline_enters_first() -> None:
    r = rig()
    late = r.new(8, 2, slo=Slo(ttft_deadline_ns=90 * MS))
    soon = r.new(8, 2, slo=Slo(ttft_deadline_ns=50 * MS))
    r.drain()
    assert r.admitted() == [soon, late]


def test_a_long_prompt_must_start_earlier_for_the_same_deadline() -> None:
    r = rig()
    short = r.new(8, 2, slo=Slo(ttft_deadline_ns=90 * MS))
    long = r.new(40, 2, slo=Slo(ttft_deadline_ns=90 * MS))
    r.drain()
    assert r.admitted() == [long, short]


def test_without_ttft_the_end_to_end_deadline_counts() -> None:
    r = rig()
    ttft = r.new(8, 2, slo=Slo(ttft_deadline_ns=60 * MS))
    whole = r.new(8, 2, slo=Slo(e2e_deadline_ns=50 * MS))
    r.drain()
    assert r.admitted() == [whole, ttft]


def test_no_deadline_waits_but_not_for_ever() -> None:
    r = rig(default_ms=100)
    none = r.new(8, 2, arrived_ns=0)
    sooner = r.new(8, 2, slo=Slo(ttft_deadline_ns=99 * MS))
    later = r.new(8, 2, slo=Slo(ttft_deadline_ns=101 * MS))
    r.drain()
    assert r.admitted() == [sooner, none, later]


def test_after_the_first_token_tpot_sets_the_deadline() -> None:
    r = rig()
    resumed = r.add_resumed(tokens=5, slo=Slo(ttft_deadline_ns=10 * MS, tpot_ns=20 * MS))  # due at 110 ms
    sooner = r.new(8, 2, slo=Slo(ttft_deadline_ns=80 * MS))
    later = r.new(8, 2, slo=Slo(ttft_deadline_ns=120 * MS))
    r.drain()
    assert r.admitted() == [sooner, resumed, later]
