"""The LLM machine step by step: batching, asynchronous steps, ends and cancels."""

import pytest
from tests.property.fake_engine import expected
from tests.property.llm_world import ROOTS, make_limits, make_request
from tests.property.rig import Rig

from headway.core.errors import InvariantError
from headway.core.events import StepDone
from headway.core.plans import StepTiming
from headway.core.request import FinishReason
from headway.cost.llm import StepCost, StepCostParams

depths = pytest.mark.parametrize("depth", [1, 2, 3, 4])


# SPEC B1
def test_prefill_and_decode_share_a_step() -> None:
    rig = Rig(async_depth=1)
    rig.new(4, 8)
    rig.step()
    rig.new(6, 8)
    plan = rig.step()
    assert (plan.kind, plan.decodes, plan.prefill_tokens) == ("mixed", 1, 6)
    rig.drain()


# SPEC B1: the budget counts decodes first, and always covers them
def test_the_token_budget_covers_decodes_before_prefill() -> None:
    rig = Rig(async_depth=1, step_tokens=8, max_seqs=8, chunk_params={"tokens": 8})
    for _ in range(5):
        rig.new(4, 40)
    while rig.machine.state.decodes < 4:
        rig.step()
    rig.new(30, 4)
    assert all(rig.step().tokens <= 8 for _ in range(12))
    rig.drain()


# SPEC B6
@depths
def test_up_to_depth_steps_are_open_at_a_time(depth: int) -> None:
    rig = Rig(async_depth=depth)
    rig.new(4, 20)
    for _ in range(depth):
        rig.must_plan()
    with pytest.raises(InvariantError, match=f"async_depth is {depth}"):
        rig.plan()
    rig.drain()


# SPEC B6: placeholders
@depths
def test_an_open_step_provides_the_next_ones_input_token(depth: int) -> None:
    rig = Rig(async_depth=depth)
    rig.new(4, 20)
    plans = [rig.must_plan() for _ in range(depth)]
    assert [plan.basis_step for plan in plans] == [0] * depth
    if depth > 1:
        (join,) = plans[1].join
        assert (join.step, join.token) == (plans[0].step, -1)
    rig.drain()


# test_stop_by_max_tokens: never a row too many
@depths
def test_a_length_limit_wastes_no_row(depth: int) -> None:
    rig = Rig(async_depth=depth)
    rig.new(4, 6)
    rig.drain()
    assert sum(plan.decodes for plan in rig.plans) == 5
    assert rig.ended[1].reason is FinishReason.LENGTH


def test_the_last_token_by_limit_ends_with_the_step_that_samples_it() -> None:
    rig = Rig(async_depth=2)
    rig.new(4, 1)
    rig.must_plan()
    (ended,) = rig.done()
    assert (ended.reason, ended.output_tokens) == (FinishReason.LENGTH, 1)


# SPEC B5: a stop seen while more steps are open: they compute in vain, and nothing of them counts
@depths
def test_a_stop_drops_what_open_steps_sample_after_it(depth: int) -> None:
    rig = Rig(async_depth=depth)
    for seed in range(12):
        rig.add(make_request(seed, (1, 2, 3), 40, seed=seed))
    rig.drain()
    assert {ended.reason for ended in rig.ended.values()} >= {FinishReason.STOP}


# SPEC B5 mini-sglang PR#111, test_abort_defers_free: cancel with open steps frees behind the fence, once
@depths
def test_a_cancelled_requests_blocks_return_when_its_open_steps_are_done(depth: int) -> None:
    rig = Rig(async_depth=depth)
    seq = rig.new(9, 30)
    for _ in range(depth):
        rig.must_plan()
    pool = rig.machine.state.pool
    ended = rig.stop(seq)
    assert ended is not None
    assert ended.output_tokens == 0
    assert pool.fenced == 3
    for left in range(depth, 0, -1):
        assert pool.fenced == 3, f"{left} steps are open"
        rig.done()
    assert pool.available == pool.size
    assert rig.stop(seq) is None


# test_abort: in any order while steps are open
@depths
def test_cancels_in_any_order_leave_the_others_alone(depth: int) -> None:
    rig = Rig(async_depth=depth, max_seqs=8)
    seqs = [rig.new(5, 12) for _ in range(6)]
    for turn, victim in enumerate((4, 0, 2)):
        for _ in range(turn + 1):
            rig.step()
        rig.stop(seqs[victim])
    rig.drain()
    assert [rig.ended[seq].reason.value for seq in seqs] == [
        "cancelled", "length", "cancelled", "length", "cancelled", "length",
    ]  # fmt: skip


# sglang#38981, sglang PR#34153: cancel between chunks, and right after the last one
@depths
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_cancel_around_a_prefill_ends_only_that_request(depth: int, steps: int) -> None:
    rig = Rig(async_depth=depth, chunk_params={"tokens": 4})
    seq, other = rig.new(11, 9), rig.new(11, 9)
    for _ in range(steps):
        rig.step()
    rig.stop(seq)
    rig.drain()
    assert rig.ended[other].output_tokens == 9


# A cancelled request's planned chunk still runs: a later plan may read its blocks.
def test_a_planned_chunk_of_a_cancelled_request_can_be_hit() -> None:
    rig = Rig(async_depth=2)
    prompt = (1, 2, 3, 4, 1, 2, 3, 4, 1)
    first = rig.add(make_request(1, prompt, 8, ignore_eos=True))
    rig.must_plan()
    rig.stop(first)
    rig.add(make_request(2, prompt, 8, ignore_eos=True))
    plan = rig.must_plan()
    assert plan.chunks[0].start == 8
    rig.drain()


# vllm#53706: a whole prompt in the cache still computes its last token
def test_a_full_hit_computes_one_token_at_least() -> None:
    rig = Rig(async_depth=1)
    prompt = (1, 2, 3, 4) * 2
    for number in (1, 2):
        rig.add(make_request(number, prompt, 4, ignore_eos=True))
        rig.drain()
    chunks = [(chunk.start, chunk.count) for plan in rig.plans for chunk in plan.chunks]
    assert chunks == [(0, 8), (4, 4)]


# SPEC B2: hit tokens are reported
def test_hits_are_reported_per_request_and_in_total() -> None:
    rig = Rig(async_depth=1)
    prompt = (1, 2, 3, 4) * 3
    for number in (1, 2):
        rig.add(make_request(number, prompt, 4, ignore_eos=True))
        rig.drain()
    assert [rig.ended[seq].cached_tokens for seq in (1, 2)] == [0, 8]
    counters = rig.machine.counters()
    assert (counters["prefix_hit_tokens"], counters["prefix_query_tokens"]) == (8, 24)


# test_prefix_caching_for_multi_turn
def test_a_follow_up_turn_hits_the_answer_before() -> None:
    rig = Rig(async_depth=2)
    first = make_request(1, (1, 2, 3, 4, 1), 60, seed=3)
    answer = expected(first, 60)
    assert len(answer) > 8
    assert answer[-1] == 0
    rig.add(first)
    rig.drain()
    rig.add(make_request(2, (*first.prompt, *answer, 2, 2), 4, seed=3))
    rig.drain()
    reusable = (5 + len(answer) - 1) // 4 * 4
    assert rig.ended[2].cached_tokens == reusable


# vllm#44701: another tenant's salt never hits
def test_another_salt_never_hits() -> None:
    rig = Rig(async_depth=1)
    prompt = (1, 2, 3, 4) * 3
    for number, root in enumerate(ROOTS):
        rig.add(make_request(number, prompt, 2, root=root, ignore_eos=True))
        rig.drain()
    assert rig.machine.counters()["prefix_hit_tokens"] == 0


def test_after_a_reset_nothing_computed_before_is_hit() -> None:
    rig = Rig(async_depth=2)
    prompt = (1, 2, 3, 4) * 3
    rig.add(make_request(1, prompt, 30, ignore_eos=True))
    for _ in range(5):
        rig.step()
    rig.machine.reset_prefix_cache()
    rig.machine.check_invariants()
    rig.add(make_request(2, prompt, 4, ignore_eos=True))
    rig.drain()
    assert rig.ended[2].cached_tokens == 0


# SPEC B6: consecutive prefills do not overlap when told so
def test_a_pure_prefill_is_not_planned_behind_another_when_forbidden() -> None:
    rig = Rig(async_depth=2, overlap_prefills=False, chunk_params={"tokens": 4})
    rig.new(12, 2)
    assert rig.must_plan().kind == "prefill"
    assert rig.plan() is None
    rig.done()
    assert rig.must_plan().kind == "prefill"
    rig.drain()


def test_a_prefill_beside_decodes_overlaps_all_the_same() -> None:
    rig = Rig(async_depth=2, overlap_prefills=False, chunk_params={"tokens": 4})
    rig.new(4, 30)
    for _ in range(4):
        rig.step()
    rig.new(12, 2)
    while not rig.must_plan().chunks:
        rig.done()
    rig.done()
    assert rig.must_plan().kind == "mixed"
    rig.drain()


# SPEC B11: the seam for grammars
def test_a_guided_sequence_samples_after_its_token_before_and_nobody_else_waits() -> None:
    rig = Rig(async_depth=2)
    guided, free = rig.new(4, 12), rig.new(4, 12)
    rig.machine.sample_after_host(guided)
    for _ in range(6):
        rig.step()
    decoding = [plan for plan in rig.plans if plan.decodes == 2]
    assert decoding
    assert all(plan.after == ((guided, plan.step - 1),) for plan in decoding)
    assert free not in {seq for plan in rig.plans for seq, _step in plan.after}
    rig.drain()
    assert not rig.machine.state.guided


# SPEC B10: the seam for encoders; vllm#53130: who waits takes no seat
def test_a_request_that_waits_for_its_input_takes_no_seat_and_enters_when_ready() -> None:
    rig = Rig(async_depth=2, max_seqs=1)
    waits, other = rig.new(4, 6), rig.new(4, 6)
    rig.machine.await_input(waits)
    while other not in rig.ended:
        rig.step()
    assert waits not in rig.admitted()
    rig.machine.ready(waits)
    rig.drain()
    assert rig.ended[waits].output_tokens == 6


def test_cancel_while_waiting_for_an_input_ends_it_and_ready_is_ignored() -> None:
    rig = Rig()
    seq = rig.new(4, 6)
    rig.machine.await_input(seq)
    rig.stop(seq)
    rig.machine.ready(seq)
    assert (rig.machine.live, rig.machine.waiting) == (0, 0)


# vllm PR#5349, #3032: resume keeps the border between prompt and outputs
def test_a_resume_goes_on_from_its_emitted_tokens() -> None:
    rig = Rig(async_depth=2)
    request = make_request(1, (1, 2, 3), 12, ignore_eos=True)
    rig.add(request, expected(request, 5))
    rig.drain()
    (new,) = [new for plan in rig.plans for new in plan.new]
    assert (new.prompt, new.outputs) == ((1, 2, 3), expected(request, 5))
    assert rig.ended[1].output_tokens == 12


def test_a_step_out_of_order_is_an_error() -> None:
    rig = Rig(async_depth=2)
    rig.new(4, 8)
    rig.must_plan()
    rig.must_plan()
    with pytest.raises(InvariantError, match="oldest open step is 1"):
        rig.machine.step_done(StepDone(0, "test", 2, (), (), StepTiming(0, 0, 0)))


# SPEC B9: a steady plan names nothing but grants
def test_steady_decode_names_only_block_grants_and_decides_nothing() -> None:
    rig = Rig(limits=make_limits(kv_blocks=400), max_seqs=6)
    for _ in range(6):
        rig.new(5, 60)
    while rig.machine.state.decodes < 6:
        rig.step()
    for _ in range(4):
        rig.step()
    rig.machine.take_decisions()
    before = rig.machine.state.visits
    plans = [rig.step() for _ in range(16)]
    for plan in plans:
        rest = (plan.leave, plan.preempt, plan.pause, plan.new, plan.join, plan.chunks, plan.swap_out, plan.swap_in)
        assert not any(rest)
    assert sum(len(plan.grant) for plan in plans) == 6 * 16 // 4
    assert rig.machine.state.visits - before == 6 * 16 // 4, "nobody is visited but for a block"
    assert rig.machine.take_decisions() == []
    rig.drain()


def test_the_belief_learns_from_done_steps() -> None:
    belief = StepCost(StepCostParams(base_ns=1e6, learn=True))
    rig = Rig(belief=belief, async_depth=1)
    rig.new(4, 60)
    for _ in range(40):
        plan = rig.machine.plan(0)
        assert plan is not None
        done = rig.engine.run(plan)
        timing = StepTiming(0, 1000, 1000 + 50_000_000)
        rig.machine.step_done(StepDone(0, "t", done.step, (), (), timing))
    assert belief.observed > 0
    assert belief.step_ns(1, 20) == pytest.approx(5e7, rel=0.1)


def test_reports_follow_the_queue_and_the_batch() -> None:
    rig = Rig(async_depth=1, max_seqs=1, limits=make_limits(kv_blocks=20))
    rig.new(9, 20)
    rig.new(7, 4)
    m = rig.machine
    assert (m.waiting, m.running, m.waiting_prefill_tokens, m.kv_blocks_free) == (2, 0, 16, 20)
    rig.step()
    rig.step()
    assert (m.waiting, m.running, m.waiting_prefill_tokens, m.running_kv_tokens) == (1, 1, 7, 10)
    blocks = next(account for account in m.accounts() if account.name == "replica/rep-0/kv_blocks")
    assert (blocks.used, blocks.reserved, blocks.capacity, blocks.kind) == (3, 0, 20, "level")
    assert m.runnable
    rig.drain()
    assert not m.runnable
    assert all(account.cache or account.used == 0 for account in m.accounts())


# A request that stops early leaves its limit in the calendar for thousands of steps; it must not keep its prompt alive.
def test_the_calendar_remembers_numbers_and_forgets_them_when_their_step_is_done() -> None:
    rig = Rig(limits=make_limits(kv_blocks=400, max_model_len=1000))
    stays = rig.new(4, 500)
    for _ in range(20):
        seq = rig.new(4, 50)
        rig.step()
        rig.step()
        rig.stop(seq)
    calendar = rig.machine.state.calendar
    assert {type(number) for numbers in calendar.values() for number in numbers} == {int}
    for _ in range(60):
        rig.step()
    assert {number for numbers in calendar.values() for number in numbers} == {stays}
    rig.drain()
