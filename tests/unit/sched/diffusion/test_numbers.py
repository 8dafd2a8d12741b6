"""A diffusion replica in the words of all replicas."""

from tests.unit.sched.diffusion.pictures import machine, picture

from headway.core.artifacts import StageTimes
from headway.sched.diffusion.numbers import DiffusionNumbers


def test_it_counts_requests_and_steps_and_no_tokens() -> None:
    painter = machine(batch_max=1)
    numbers = DiffusionNumbers(painter)
    painter.add(picture("req-1"))
    painter.add(picture("req-2"))
    painter.plan()
    nothing = {"text_cache_hits": 0, "image_cache_hits": 0}
    counts = {"denoise_steps": 1, "preemptions": 0, **nothing}
    assert (numbers.waiting, numbers.running, numbers.counters()) == (1, 1, counts)
    assert (numbers.waiting_prefill_tokens, numbers.running_kv_tokens, numbers.kv_blocks_free) == (0, 0, 0)
    assert numbers.step_cost is None
    assert [(view.kind, view.used) for view in numbers.accounts()] == [("level", 0)] * 2  # checkpoints, prompts


# SPEC G2
def test_it_counts_words_and_pictures_that_were_encoded_before_apart() -> None:
    numbers = DiffusionNumbers(machine(batch_max=1))
    for stages in (StageTimes(text_hits=2, image_hits=1), None, StageTimes(text_hits=1)):
        numbers.encoded(stages)
    counts = numbers.counters()
    assert (counts["text_cache_hits"], counts["image_cache_hits"]) == (3, 1)
