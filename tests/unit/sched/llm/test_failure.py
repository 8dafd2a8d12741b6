"""After a failed engine step everybody goes on from what landed."""

import pytest
from tests.property.fake_engine import Book
from tests.property.llm_world import make_limits
from tests.property.rig import Rig

from headway.core.errors import InvariantError


def fail(rig: Rig) -> None:
    """The oldest open step fails; the worker introduces everybody again with what landed."""
    step = rig.open[0].step
    rig.open.clear()
    assert rig.machine.fail(step, rig.now) == []
    rig.machine.check_invariants()
    rig.engine.rows.clear()
    rig.engine.kv.clear()
    rig.engine.books = {
        seq: Book(request.prompt, request.sampling.seed, True, list(rig.tokens[seq]), [0] * len(rig.tokens[seq]))
        for seq, request in rig.requests.items()
        if seq not in rig.ended and rig.seq(seq).known
    }


# SPEC B5
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 5, 9])
def test_everybody_ends_with_exact_outputs_after_a_failed_step(depth: int, after: int) -> None:
    rig = Rig(limits=make_limits(kv_blocks=24), async_depth=depth, chunk_params={"tokens": 6}, swap=False)
    for number in range(6):
        rig.new(4 + 3 * number, 3 + 2 * number)
    for _ in range(after):
        rig.step()
    if not rig.open:
        rig.must_plan()
    fail(rig)
    rig.drain()
    assert len(rig.ended) == 6


def test_a_failure_counts_against_nobodys_cap() -> None:
    rig = Rig(async_depth=2, preemptions_max=0)
    rig.new(8, 12)
    rig.step()
    rig.must_plan()
    fail(rig)
    assert rig.seq(1).preemptions == 0
    assert rig.seq(1).reserve == 0
    rig.drain()


def test_no_kv_is_trusted_afterwards() -> None:
    rig = Rig(async_depth=2)
    rig.new(12, 12)
    for _ in range(4):
        rig.step()
    fail(rig)
    pool = rig.machine.state.pool
    assert not list(pool.index.items())
    assert pool.available == pool.size
    rig.drain()


def test_a_sequence_whose_last_token_was_in_the_failed_step_goes_on() -> None:
    rig = Rig(async_depth=3)
    rig.new(4, 3)
    for _ in range(3):
        rig.must_plan()
    rig.done()
    assert rig.plan() is None
    fail(rig)
    rig.drain()
    assert rig.ended[1].output_tokens == 3


def test_a_step_that_is_not_open_cannot_fail() -> None:
    rig = Rig(async_depth=2)
    rig.new(4, 8)
    rig.must_plan()
    with pytest.raises(InvariantError, match="step 2 failed, open are 1 to 1"):
        rig.machine.fail(2, 0)
