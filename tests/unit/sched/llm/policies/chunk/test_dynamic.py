"""Chunks that shrink with history."""

from tests.property.llm_world import make_limits
from tests.property.rig import Rig

from headway.cost.llm import StepCost, StepCostParams


def rig(tokens: int = 100, tokens_min: int = 10) -> Rig:
    """Attention costs as much as the rest at 100 tokens of history."""
    belief = StepCost(StepCostParams(base_ns=5000, token_ns=100, pair_ns=1, learn=False))
    limits = make_limits(kv_blocks=2000, max_model_len=4000)
    params: dict[str, object] = {"tokens": tokens, "tokens_min": tokens_min}
    return Rig(limits=limits, belief=belief, chunk="dynamic", chunk_params=params, step_tokens=1000, async_depth=1)


# SPEC B1
def test_every_chunk_takes_about_as_long_as_the_first() -> None:
    r = rig()
    r.new(1500, 1)
    r.drain()
    chunks = [chunk for plan in r.plans for chunk in plan.chunks]
    first = r.belief.prefill_ns(0, 100)
    counts = [chunk.count for chunk in chunks[:-1]]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 100
    assert counts[-1] < 20
    for chunk in chunks[:-1]:
        took, more = r.belief.prefill_ns(chunk.start, chunk.count), r.belief.prefill_ns(chunk.start, chunk.count + 1)
        assert took <= first < more or chunk.count == 10


def test_it_never_falls_below_the_minimum() -> None:
    r = rig(tokens_min=40)
    r.new(1500, 1)
    r.drain()
    assert min(chunk.count for plan in r.plans[:-1] for chunk in plan.chunks) == 40


def test_a_record_says_how_much_history_made_it_small() -> None:
    r = rig()
    r.new(1500, 1)
    r.drain()
    records = r.decisions("chunk")
    assert 2 <= len(records) < 10, "a size like the one before is no news"
    assert all("of history" in record.reason for record in records)
