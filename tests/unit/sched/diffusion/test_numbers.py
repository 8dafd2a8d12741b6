"""A diffusion replica in the words of all replicas."""

from tests.unit.sched.diffusion.pictures import machine, picture

from headway.sched.diffusion.numbers import DiffusionNumbers


def test_it_counts_requests_and_steps_and_no_tokens() -> None:
    painter = machine(batch_max=1)
    numbers = DiffusionNumbers(painter)
    painter.add(picture("req-1"))
    painter.add(picture("req-2"))
    painter.plan()
    assert (numbers.waiting, numbers.running, numbers.counters()) == (1, 1, {"denoise_steps": 1, "preemptions": 0})
    assert (numbers.waiting_prefill_tokens, numbers.running_kv_tokens, numbers.kv_blocks_free) == (0, 0, 0)
    assert numbers.step_cost is None
    assert [(view.kind, view.used) for view in numbers.accounts()] == [("level", 0)] * 2  # checkpoints, prompts
