"""One engine alone, with the scheduler that serves."""

from collections.abc import Sequence

import pytest

from headway.core.errors import RequestError
from headway.cost.llm import StepShape
from headway.sim.engine_replay import EngineModel, EngineReplay, Served, requests_of, vllm_scheduler
from headway.workload.request_logs import EngineArguments, Logged

ARGUMENTS = EngineArguments("m", max_num_seqs=4, max_num_batched_tokens=100)


def logged(*requests: tuple[int, int, int]) -> list[Logged]:
    """Each: arrival, prompt tokens, output tokens."""
    return [Logged(f"r{n}", prompt, output, at, at, at) for n, (at, prompt, output) in enumerate(requests)]


def flat(_: StepShape) -> float:
    return 10.0


def replay(log: Sequence[Logged], kv_tokens: int = 10_000, host_ns: float = 0.0) -> tuple[EngineReplay, list[Served]]:
    found = EngineReplay(requests_of(log, "m"), vllm_scheduler(ARGUMENTS), 16)
    return found, found.run(EngineModel(flat, lambda rows: host_ns, kv_tokens))


def times(served: Sequence[Served]) -> list[tuple[int, int]]:
    return [(one.first_token_ns, one.last_token_ns) for one in served]


def test_a_prompt_takes_as_many_steps_as_it_has_chunks_and_every_token_one() -> None:
    assert times(replay(logged((5, 250, 4)))[1]) == [(35, 65)]


def test_who_arrives_while_steps_are_open_joins_the_next_that_is_planned() -> None:
    """Two steps are in flight: the one that begins at 10 was planned when nobody else was there."""
    assert times(replay(logged((0, 10, 9), (3, 10, 1)))[1])[1] == (30, 30)


def test_those_who_arrive_at_once_share_a_step() -> None:
    assert {one.first_token_ns for one in replay(logged((0, 10, 2), (0, 10, 2), (0, 10, 2)))[1]} == {10}


def test_decodes_go_before_prompts_in_a_full_step() -> None:
    """99 of the 100 tokens of a step are left beside one decode."""
    shapes: list[StepShape] = []

    def seen(shape: StepShape) -> float:
        shapes.append(shape)
        return 10.0

    engine = EngineReplay(requests_of(logged((0, 10, 50), (15, 150, 1)), "m"), vllm_scheduler(ARGUMENTS), 16)
    engine.run(EngineModel(seen, lambda rows: 0.0, 10_000))
    assert [(s.decodes, s.prefill_tokens) for s in shapes if s.prefill_tokens and s.decodes] == [(1, 99), (1, 51)]


def test_more_than_max_num_seqs_wait() -> None:
    served = replay(logged(*[(0, 10, 3)] * 5))[1]
    assert served[4].first_token_ns > served[0].last_token_ns


def test_the_latest_gives_way_when_blocks_run_out_and_everybody_ends() -> None:
    """Two sequences of 16 blocks each at their end, and 20 blocks."""
    engine, served = replay(logged((0, 64, 192), (0, 64, 192)), kv_tokens=320)
    assert engine.preemptions > 0
    assert served[0].last_token_ns < served[1].last_token_ns
    assert replay(logged((0, 64, 192), (0, 64, 192)))[0].preemptions == 0


def test_host_time_is_hidden_behind_the_device_while_two_steps_are_in_flight() -> None:
    quick, slow = (replay(logged((0, 10, 100)), host_ns=ns)[1][0].last_token_ns for ns in (0.0, 4.0))
    assert slow - quick == 4  # of the first step only


def test_a_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(RequestError, match="needs 20 KV blocks"):
        replay(logged((0, 300, 20)), kv_tokens=160)
