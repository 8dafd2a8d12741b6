"""Blocks lent to transfers, and sequences that freeze, leave and arrive (SPEC C3, C4; B8 transfer safety)."""

import pytest
from tests.property.fake_engine import expected
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig

from headway.core.errors import CapacityError, InvariantError
from headway.core.request import FinishReason


def copy(source: Rig, blocks: tuple[int, ...], target: Rig, into: tuple[int, ...]) -> None:
    """Move KV between two fake engines."""
    for a, b in zip(blocks, into, strict=False):
        for offset in range(source.limits.block_size):
            if (a, offset) in source.engine.kv:
                target.engine.kv[b, offset] = source.engine.kv[a, offset]


# SPEC C4, B7: what the destination generates is what the source would have
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("steps", [3, 6, 9])
def test_a_migrated_sequence_goes_on_exactly(depth: int, steps: int) -> None:
    source, target = Rig(async_depth=depth), Rig(async_depth=depth)
    request = make_request(1, (1, 2, 3, 4, 1, 2), 20, ignore_eos=True)
    seq = source.add(request)
    for _ in range(steps):
        source.step()
    last = source.machine.freeze(seq)
    while source.open and source.machine.state.done < (last or 0):
        source.done()
    outputs, blocks = tuple(source.tokens[seq]), source.machine.table(seq)
    computed = source.machine.computed(seq)
    assert computed == 6 + len(outputs) - 1
    room = target.machine.reserve_blocks(len(blocks))
    assert room is not None
    copy(source, blocks, target, room)
    there = target.machine.adopt(request, outputs, room, computed, 0)
    target.requests[there], target.tokens[there] = request, list(outputs)
    source.machine.release(seq)
    target.drain()
    while source.open or source.plan():
        source.done()
    assert tuple(target.tokens[there]) == expected(request, 20)
    assert source.machine.live == 0
    assert source.machine.state.pool.available == source.machine.state.pool.size
    first = next(plan for plan in target.plans if plan.chunks)
    assert first.prefill_tokens == 1, "only the token that was never fed back is computed"


# SPEC C3: prefill and first token only
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_held_sequence_freezes_after_its_first_token(depth: int) -> None:
    rig = Rig(async_depth=depth, chunk_params={"tokens": 4})
    seq = rig.new(10, 8)
    rig.machine.hold_after_prefill(seq)
    while rig.plan() is not None or rig.open:
        rig.done()
    assert len(rig.tokens[seq]) == 1
    assert rig.machine.freeze(seq) == rig.machine.state.done
    rig.machine.thaw(seq)
    rig.drain()
    assert rig.ended[seq].output_tokens == 8


def test_a_held_sequence_that_ends_with_its_first_token_ends() -> None:
    rig = Rig()
    seq = rig.new(10, 1)
    rig.machine.hold_after_prefill(seq)
    rig.drain()
    assert rig.ended[seq].reason is FinishReason.LENGTH


# llumnix-ray PR#179: after an aborted transfer the sequence runs again
@pytest.mark.parametrize("wait", [0, 1, 5])
def test_a_thawed_sequence_goes_on(wait: int) -> None:
    rig = Rig(async_depth=2)
    seq, other = rig.new(5, 20), rig.new(5, 20)
    for _ in range(4):
        rig.step()
    assert rig.machine.freeze(seq) is not None
    for _ in range(wait):
        rig.step()
    rig.machine.thaw(seq)
    rig.drain()
    assert {rig.ended[seq].output_tokens, rig.ended[other].output_tokens} == {20}


def test_a_frozen_sequence_is_never_a_victim() -> None:
    rig = Rig(limits=make_limits(kv_blocks=10))
    frozen = rig.new(8, 20)
    for _ in range(3):
        rig.step()
    rig.machine.freeze(frozen)
    others = [rig.new(8, 16) for _ in range(3)]
    while not set(others) <= set(rig.ended):
        rig.step()
    assert rig.seq(frozen).preemptions == 0
    rig.machine.thaw(frozen)
    rig.drain()


@pytest.mark.parametrize("state", ["waiting", "prefill", "last token"])
def test_what_does_not_decode_does_not_freeze(state: str) -> None:
    rig = Rig(async_depth=2, chunk_params={"tokens": 4})
    seq = rig.new(8, 2)
    if state == "prefill":
        rig.must_plan()
    if state == "last token":
        for _ in range(3):
            rig.step()
    assert rig.machine.freeze(seq) is None
    rig.drain()


# sglang#32564: a page that a peer reads is not reused, whatever happens to its sequence
def test_pinned_blocks_stay_until_they_are_freed() -> None:
    rig = Rig(async_depth=2)
    seq = rig.new(8, 20)
    for _ in range(3):
        rig.step()
    blocks = rig.machine.table(seq)
    rig.machine.pin_blocks(blocks)
    rig.stop(seq)
    while rig.open:
        rig.done()
    pool = rig.machine.state.pool
    assert pool.available == pool.size - len(blocks)
    rig.machine.check_invariants()
    rig.machine.free_blocks(blocks)
    assert pool.available == pool.size


def test_reserved_blocks_come_back_when_the_transfer_aborts() -> None:
    rig = Rig()
    blocks = rig.machine.reserve_blocks(10)
    assert blocks is not None
    rig.machine.check_invariants()
    rig.machine.free_blocks(blocks)
    assert rig.machine.kv_blocks_free == rig.limits.kv_blocks
    with pytest.raises(InvariantError, match="not lent"):
        rig.machine.free_blocks(blocks)


def test_a_reservation_that_does_not_fit_is_none() -> None:
    rig = Rig(limits=make_limits(kv_blocks=8))
    assert rig.machine.reserve_blocks(9) is None
    assert rig.machine.reserve_blocks(8) is not None


@pytest.mark.parametrize("lent", [1, 2, 5])
def test_an_adopted_sequence_gets_missing_blocks_and_returns_spare_ones(lent: int) -> None:
    rig = Rig(async_depth=1)
    request = make_request(1, (1, 2, 3, 4, 1, 2), 8, ignore_eos=True)
    blocks = rig.machine.reserve_blocks(lent)
    assert blocks is not None
    seq = rig.machine.adopt(request, (), blocks, 0, 0)
    rig.machine.check_invariants()
    rig.requests[seq], rig.tokens[seq] = request, []
    assert len(rig.machine.table(seq)) == 2
    rig.drain()


def test_adoption_without_room_for_the_missing_blocks_is_refused() -> None:
    rig = Rig(limits=make_limits(kv_blocks=8))
    blocks = rig.machine.reserve_blocks(1)
    assert blocks is not None
    rig.machine.reserve_blocks(7)
    request = make_request(1, (1, 2, 3, 4, 1, 2), 8)
    with pytest.raises(CapacityError, match="1 more KV blocks"):
        rig.machine.adopt(request, (), blocks, 0, 0)
    rig.machine.check_invariants()


# A destination never runs more sequences than it has seats for; the adopted goes before the queue.
def test_an_adopted_sequence_waits_for_a_seat_and_passes_the_queue() -> None:
    rig = Rig(max_seqs=1, async_depth=1)
    rig.new(4, 6)
    rig.step()
    queued = rig.new(4, 6)
    request = make_request(9, (1, 2, 3), 6, ignore_eos=True)
    blocks = rig.machine.reserve_blocks(1)
    assert blocks is not None
    adopted = rig.machine.adopt(request, (), blocks, 0, 0)
    rig.requests[adopted], rig.tokens[adopted] = request, []
    rig.drain()
    assert rig.admitted().index(adopted) < rig.admitted().index(queued)


def test_cancel_of_an_adopted_sequence_without_a_seat_frees_its_blocks() -> None:
    rig = Rig(max_seqs=1, async_depth=1)
    rig.new(4, 6)
    rig.step()
    blocks = rig.machine.reserve_blocks(2)
    assert blocks is not None
    request = make_request(9, (1,) * 6, 6, ignore_eos=True)
    adopted = rig.machine.adopt(request, (), blocks, 0, 0)
    rig.requests[adopted], rig.tokens[adopted] = request, []
    rig.stop(adopted)
    rig.drain()
