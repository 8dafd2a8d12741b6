"""Who gives way and how (SPEC B4)."""

import pytest
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig

from headway.cost.llm import StepCost, StepCostParams

MS = 1_000_000


def tight(kv_blocks: int = 12, **settings: object) -> Rig:
    """Few blocks, seats for all."""
    options = {"limits": make_limits(kv_blocks=kv_blocks, host_slots=int(bool(settings.get("swap"))) * 16), **settings}
    return Rig(**options)  # type: ignore[arg-type]  # settings are data


def until_preempted(rig: Rig) -> int:
    """Run until somebody gives way; returns who."""
    while not rig.machine.counters()["preemptions"]:
        rig.step()
    (victim,) = [seq.id for seq in rig.machine.state.seqs.values() if seq.preemptions]
    return victim


# SPEC B4
def test_the_least_urgent_gives_way() -> None:
    rig = tight()
    seqs = [rig.new(8, 20, urgency=urgency) for urgency in (1, 0, 2)]
    assert until_preempted(rig) == seqs[1]
    rig.drain()


def test_among_equals_the_cheapest_to_redo_gives_way_but_never_the_earliest() -> None:
    rig = tight(kv_blocks=14)
    rig.new(4, 30)
    long = rig.new(16, 30)
    short = rig.new(6, 30)
    assert until_preempted(rig) == short
    assert long in rig.machine.state.seqs
    rig.drain()


def test_with_equal_costs_the_latest_gives_way() -> None:
    rig = tight()
    seqs = [rig.new(8, 20) for _ in range(3)]
    assert until_preempted(rig) == seqs[-1]
    rig.drain()


# vllm#54644: the record shows what each alternative would have cost
def test_the_record_compares_the_costs() -> None:
    rig = tight()
    for prompt in (8, 12, 8):
        rig.new(prompt, 20)
    victim = until_preempted(rig)
    (record,) = rig.decisions("preempt")
    assert record.chosen == f"req-{victim}:recompute"
    assert record.request == f"req-{victim}"
    assert "needs a block" in record.reason
    chosen, *others = record.alternatives
    assert chosen.name == f"req-{victim}"
    assert chosen.score <= min(option.score for option in others[:-1])
    rig.drain()


# SPEC B4, B7: emitted tokens are kept, and what follows is what would have followed
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("swap", [False, True])
def test_a_preempted_request_keeps_its_tokens(depth: int, swap: bool) -> None:
    rig = tight(async_depth=depth, swap=swap)
    for _ in range(4):
        rig.new(9, 25)
    rig.drain()
    counters = rig.machine.counters()
    assert counters["preemptions"] > 0
    assert (counters["swaps"] > 0) == swap


# SPEC B4: swap or recompute, whichever the belief says
@pytest.mark.parametrize(("bytes_per_s", "by"), [(1e15, "swap"), (1.0, "recompute")])
def test_the_cheaper_way_is_taken(bytes_per_s: float, by: str) -> None:
    belief = StepCost(StepCostParams(kv_bytes_per_block=1000, swap_bytes_per_s=bytes_per_s, learn=False))
    rig = tight(swap=True, belief=belief)
    for _ in range(3):
        rig.new(8, 20)
    until_preempted(rig)
    (record,) = rig.decisions("preempt")
    assert record.chosen.endswith(f":{by}")
    rig.drain()


def test_without_free_host_slots_it_is_recomputed() -> None:
    rig = Rig(limits=make_limits(kv_blocks=12, host_slots=1), swap=True)
    for _ in range(3):
        rig.new(8, 20)
    until_preempted(rig)
    assert rig.machine.counters()["swaps"] == 0
    rig.drain()


def test_swapped_out_tokens_are_not_computed_again() -> None:
    rig = tight(swap=True)
    for _ in range(3):
        rig.new(8, 20)
    rig.drain()
    assert rig.machine.counters()["swaps"] > 0
    assert rig.machine.counters()["recomputed_tokens"] == 0
    swapped = {swap.seq for plan in rig.plans for swap in plan.swap_in}
    again = [c for plan in rig.plans for c in plan.chunks if c.seq in swapped and c.table and c.start >= 8]
    assert again
    assert all(chunk.count == 1 for chunk in again)


# sglang#18701: cancel while swapped out frees the host copy
@pytest.mark.parametrize("later", [0, 1, 2])
def test_cancel_of_a_swapped_request_frees_its_host_slots(later: int) -> None:
    rig = tight(swap=True)
    for _ in range(3):
        rig.new(8, 20)
    victim = until_preempted(rig)
    for _ in range(later):
        rig.step()
    assert rig.machine.state.slots.used > 0
    rig.stop(victim)
    rig.drain()
    assert rig.machine.state.slots.available == 16


# inference-sim#963: a cap, and then the whole room before it returns
def test_nobody_is_preempted_more_often_than_the_cap() -> None:
    rig = tight(preemptions_max=1, kv_blocks=16)
    for _ in range(6):
        rig.new(8, 40)
    rig.drain()
    assert max(ended.preemptions for ended in rig.ended.values()) == 1


def test_at_the_cap_a_request_returns_with_its_worst_case_reserved() -> None:
    rig = tight(preemptions_max=1)
    for _ in range(3):
        rig.new(8, 20)
    victim = until_preempted(rig)
    while not rig.seq(victim).table:
        rig.step()
    seq = rig.seq(victim)
    assert len(seq.table) + seq.reserve == seq.worst_blocks == 7
    rig.drain()
    assert rig.machine.state.pool.reserved == 0


def test_with_a_cap_of_zero_nothing_is_admitted_that_could_need_more_than_there_is() -> None:
    rig = tight(preemptions_max=0)
    for _ in range(5):
        rig.new(8, 20)
    rig.drain()
    assert rig.machine.counters()["preemptions"] == 0


# vllm-ascend#16315: blocks behind the fence do not help now, so evicting more would help nobody
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_no_cascade_while_victims_blocks_are_behind_the_fence(depth: int) -> None:
    rig = tight(kv_blocks=18, async_depth=depth, preemptions_max=5)
    for _ in range(6):
        rig.new(8, 40)
    worst = 0
    while rig.machine.live:
        before = rig.machine.counters()["preemptions"]
        rig.step()
        worst = max(worst, rig.machine.counters()["preemptions"] - before)
    assert worst <= 2
    rig.drain()


# vllm#45387: two requests hold prefixes, neither gets its rest
def test_two_requests_that_share_a_prefix_never_lock_each_other_out() -> None:
    rig = tight(kv_blocks=9, max_seqs=4)
    prefix = (1, 2, 3, 4) * 3
    for number in range(4):
        rig.add(make_request(number, (*prefix, number + 1), 20, ignore_eos=True, arrived_ns=number))
    rig.drain()


# SPEC B4, B9: room comes before any step is planned, so that it computes again in the step in which it gave way
def test_who_gave_way_and_lost_no_step_ends_after_those_who_stayed() -> None:
    rig = tight(kv_blocks=9, async_depth=1, prefix_cache=False)
    gives_way, stays, leaves = (rig.new(8, 8) for _ in range(3))
    while rig.machine.state.step < 5:
        rig.step()
    assert rig.machine.freeze(stays) == rig.machine.freeze(leaves) == 5
    assert rig.plan() is None, "its block is missing, and nobody else decodes"
    rig.stop(leaves)
    rig.machine.thaw(stays)
    assert [chunk.seq for chunk in rig.must_plan().chunks if chunk.table] == [gives_way]
    assert rig.seq(gives_way).leave_at == rig.seq(stays).leave_at
    rig.drain()
    assert list(rig.ended) == [leaves, stays, gives_way]


# SPEC B8: progress, hostile, and still everybody finishes
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("cap", [0, 1, 3])
def test_everybody_finishes_under_permanent_shortage(depth: int, cap: int) -> None:
    rig = tight(kv_blocks=10, max_seqs=8, async_depth=depth, preemptions_max=cap, swap=depth == 2)
    for _ in range(20):
        rig.new(8, 25)
    rig.drain()
    assert {ended.output_tokens for ended in rig.ended.values()} == {25}
