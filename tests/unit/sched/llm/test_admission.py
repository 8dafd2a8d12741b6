"""Entry into the running set."""

import msgspec
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig


# SPEC B8: progress, strict order; a large head is not overtaken for ever
def test_nobody_is_admitted_past_a_head_that_does_not_fit() -> None:
    rig = Rig(limits=make_limits(kv_blocks=16), async_depth=1)
    rig.new(20, 24)
    rig.step()
    large, small = rig.new(40, 2), rig.new(4, 2)
    rig.drain()
    assert rig.admitted().index(large) < rig.admitted().index(small)


def test_the_watermark_stays_free_while_others_run() -> None:
    rig = Rig(limits=make_limits(kv_blocks=10), async_depth=1, watermark=4)
    first = rig.new(16, 4)
    second = rig.new(12, 4)
    rig.step()
    assert rig.admitted() == [first]
    rig.drain()
    assert rig.admitted() == [first, second]


def test_the_watermark_does_not_keep_the_last_request_out() -> None:
    rig = Rig(limits=make_limits(kv_blocks=10), watermark=4)
    rig.new(32, 4)
    rig.drain()


# SPEC L-3: a blocked head is recorded when it becomes blocked, not every step
def test_a_blocked_head_is_recorded_once() -> None:
    rig = Rig(limits=make_limits(kv_blocks=10), async_depth=1)
    rig.new(16, 20)
    rig.step()
    rig.new(30, 2)
    for _ in range(8):
        rig.step()
    (record,) = rig.decisions("blocked")
    assert record.chosen == "req-2"
    assert "needs up to 8 KV blocks, 5 of 10 are available" in record.reason
    rig.drain()


def test_an_admission_is_recorded_with_its_hits() -> None:
    rig = Rig(async_depth=1)
    for number in (1, 2):
        rig.add(make_request(number, (1, 2, 3, 4) * 3, 2, ignore_eos=True))
        rig.drain()
    first, second = rig.decisions("admit")
    assert (first.request, second.request) == ("req-1", "req-2")
    assert "8 of 12 tokens cached" in second.reason


def test_decisions_can_be_turned_off() -> None:
    rig = Rig(decisions=False)
    rig.new(4, 4)
    rig.drain()
    assert rig.machine.take_decisions() == []


# A failed look is remembered until something comes free: the head is not matched again and again (SPEC B9)
def test_a_blocked_head_is_not_looked_at_again_while_nothing_changes() -> None:
    rig = Rig(limits=make_limits(kv_blocks=12, block_size=8), async_depth=1)
    rig.new(16, 60)
    rig.step()
    rig.step()
    rig.new(80, 2)
    rig.step()
    before = rig.machine.state.visits
    grants = sum(len(rig.step().grant) for _ in range(7))
    assert rig.machine.state.visits - before == grants
    rig.drain()


def test_twins_in_one_step_both_compute_and_both_are_right() -> None:
    rig = Rig(async_depth=2)
    for number in (1, 2):
        rig.add(make_request(number, (1, 2, 3, 4) * 3, 6, ignore_eos=True))
    assert [chunk.start for chunk in rig.must_plan().chunks] == [0, 0]
    rig.drain()


# vllm#12's chunked cousin: prompt scores need every position computed (vllm PR#29071)
def test_a_request_for_prompt_logprobs_takes_no_hits() -> None:
    rig = Rig(async_depth=1)
    request = make_request(1, (1, 2, 3, 4) * 3, 2, ignore_eos=True)
    rig.add(request)
    rig.drain()
    rig.add(msgspec.structs.replace(request, prompt_logprobs=True))
    rig.drain()
    assert rig.ended[2].cached_tokens == 0
