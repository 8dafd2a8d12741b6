"""Shortest predicted first, with aging."""

from tests.property.rig import Rig

from headway.cost.llm import StepCost, StepCostParams

MS = 1_000_000


def rig(**params: object) -> Rig:
    """One seat; a decode step costs 1 ms, a prompt token 0.1 ms."""
    belief = StepCost(StepCostParams(base_ns=MS, row_ns=0, kv_ns=0, token_ns=MS / 10, pair_ns=0, learn=False))
    return Rig(belief=belief, order="shortest_predicted", order_params=params, max_seqs=1, async_depth=1)


# SPEC B3
def test_the_shorter_prediction_enters_first() -> None:
    r = rig()
    long, short = r.new(4, 60, predicted=50, arrived_ns=0), r.new(4, 60, predicted=5, arrived_ns=0)
    r.drain()
    assert r.admitted() == [short, long]


def test_the_prompt_counts_too() -> None:
    r = rig()
    long, short = r.new(60, 60, predicted=5, arrived_ns=0), r.new(4, 60, predicted=5, arrived_ns=0)
    r.drain()
    assert r.admitted() == [short, long]


def test_an_unknown_length_counts_as_configured() -> None:
    r = rig(unknown_tokens=20)
    unknown = r.new(4, 60, arrived_ns=0)
    shorter, longer = r.new(4, 60, predicted=19, arrived_ns=0), r.new(4, 60, predicted=21, arrived_ns=0)
    r.drain()
    assert r.admitted() == [shorter, unknown, longer]


def test_no_output_is_expected_beyond_what_may_be_generated() -> None:
    # A request that asks for five tokens is short, whatever nobody knows about it.
    r = rig(unknown_tokens=256)
    long, short = r.new(4, 60, predicted=20, arrived_ns=0), r.new(4, 5, arrived_ns=0)
    r.drain()
    assert r.admitted() == [short, long]


def test_waiting_makes_up_for_length() -> None:
    r = rig(stretch=2)
    old = r.new(4, 60, predicted=50, arrived_ns=0)
    fresh = r.new(4, 60, predicted=5, arrived_ns=91 * MS)  # 2 * 45 ms is what the length is worth
    r.drain()
    assert r.admitted() == [old, fresh]


def test_a_stream_of_short_requests_does_not_starve_a_long_one() -> None:
    r = rig(stretch=2)
    long = r.new(4, 60, predicted=50, arrived_ns=0)
    for number in range(60):
        r.new(4, 1, predicted=1, arrived_ns=number * 4 * MS)
    r.drain()
    assert r.admitted().index(long) < 30
