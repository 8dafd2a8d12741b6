import pytest

from headway.cost.closed_loop import ClosedLoop, prefill_ns, tpot_ns
from headway.cost.llm import StepShape, pairs


class Linear:
    """1 ms a step, 10 us a decode, 1 us a prompt token; the host takes 2 us a row."""

    def step_ns(self, shape: StepShape) -> float:
        return 1e6 + 1e4 * shape.decodes + 1e3 * shape.prefill_tokens + shape.prefill_pairs + shape.chunk_context

    def host_ns(self, rows: int) -> float:
        return 2e3 * rows


def test_a_long_answer_hides_its_prompt() -> None:
    assert tpot_ns(Linear(), ClosedLoop(1, 1_000_000, 8)) == pytest.approx(1e6 + 8 * 1e4 + 8 * 2e3, rel=1e-4)


def test_every_request_waits_for_the_prompts_of_the_others() -> None:
    """8 prompts of 512 tokens in 64 steps: a step of eight carries one, less the decode of the row that prefills."""
    load = ClosedLoop(512, 64, 8)
    prompt = 512 * 1e3 + pairs(0, 512) + 512 - 1e4
    assert tpot_ns(Linear(), load) == pytest.approx(1e6 + 8 * 1e4 + 8 * 2e3 + prompt / 8)


def test_a_cached_prefix_is_attended_to_but_not_computed() -> None:
    assert prefill_ns(Linear(), 100, 900) == 1e6 + 100 * 1e3 + pairs(900, 100) + 1000 + 2e3
