import pytest

from headway.cost.llm import StepShape
from headway.sim.linear import LinearParams, LinearStep
from headway.sim.plan_fluid import Flow, Room, balance, fewest, prompt_ns

# 5 ms a step, 100 us a token, nothing for context.
STEP = LinearStep(LinearParams(step_us=5000.0, token_us=100.0, kv_ns=0.0))
WIDE = Room(kv_tokens=10**9, max_seqs=10**6, step_tokens=10**6)


def flow(rate: float, prompt: float = 0.0, decodes: float = 100.0) -> Flow:
    return Flow(rate, prompt, 0.0, decodes, 200.0)


def test_without_limits_only_the_work_of_tokens_counts() -> None:
    """100 requests of 100 decodes at 0.1 ms are 1 s of work per second; REFERENCE 2."""
    found = fewest(STEP, flow(99.0), WIDE)
    assert found is not None
    assert found.replicas == 1
    more = fewest(STEP, flow(101.0), WIDE)
    assert more is not None
    assert more.replicas == 2


def test_a_promised_tpot_limits_how_far_the_base_of_a_step_spreads() -> None:
    """TPOT = t0 / (1 - lambda o t1): 10 ms at t0 = 5 ms needs lambda o t1 <= 1/2 per replica. REFERENCE 2, decode
    fixed point."""
    # aiconfigurator#725: the TPOT limit bounds the search
    room = Room(kv_tokens=10**9, max_seqs=10**6, step_tokens=10**6, period_ns=10e6)
    for rate, replicas in ((50.0, 1), (99.0, 2), (149.0, 3)):
        found = fewest(STEP, flow(rate), room)
        assert found is not None
        assert (found.replicas, found.limit) == (replicas, "TPOT")


def test_kv_limits_the_batch_and_so_the_rate() -> None:
    """10 sequences at a time: 6 ms a step make 1667 tokens per second, of 2500 that arrive."""
    # aiconfigurator#1396: a batch that memory cannot hold serves nobody
    room = Room(kv_tokens=2000, max_seqs=10**6, step_tokens=10**6)
    found = fewest(STEP, flow(25.0), room)
    assert found is not None
    assert (found.replicas, found.limit) == (2, "KV")


def test_prompts_are_work_too() -> None:
    """20 requests per second of 500 prompt tokens are 1 s of work per second."""
    one, two = (fewest(STEP, flow(rate, prompt=500.0, decodes=0.0), WIDE) for rate in (19.0, 21.0))
    assert one is not None
    assert two is not None
    assert (one.replicas, two.replicas) == (1, 2)


def test_slower_steps_need_more() -> None:
    found = fewest(STEP, flow(99.0), WIDE, slower=1.1)
    assert found is not None
    assert found.replicas == 2


def test_a_step_above_the_tpot_is_never_enough() -> None:
    room = Room(kv_tokens=10**9, max_seqs=10**6, step_tokens=10**6, period_ns=4e6)

    class Slow:
        def step_ns(self, shape: StepShape) -> float:
            return 5e6  # an empty step too

        def host_ns(self, rows: int) -> float:
            return 0.0

    # Fractions of a decode round down, so that idle replicas are enough; `Space` refuses the layout by its TPOT.
    found = fewest(Slow(), flow(100.0), room)
    assert found is not None
    assert found.replicas > 40


def test_an_unknown_rate_bounds_nothing() -> None:
    found = fewest(STEP, flow(0.0), WIDE)
    assert found is not None
    assert found.replicas == 1


def test_a_prompt_alone_takes_its_chunks_one_after_the_other() -> None:
    assert prompt_ns(STEP, 1000, 1000) == pytest.approx(105e6)
    assert prompt_ns(STEP, 1000, 400) == pytest.approx(115e6)


def test_the_best_ratio_of_prefill_to_decode() -> None:
    """REFERENCE 2: N_p/N_d = E[t_pf] b / (E[o] t(b))."""
    assert balance(50e6, 10e6, batch=32, output=160) == pytest.approx(1.0)
