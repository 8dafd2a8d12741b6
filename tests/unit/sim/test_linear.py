from headway.cost.llm import StepShape
from headway.sim.linear import LinearParams, LinearStep


def test_a_step_takes_its_base_and_so_much_per_token_and_context() -> None:
    step = LinearStep(LinearParams(step_us=1000, token_us=10, kv_ns=2))
    assert step.step_ns(StepShape()) == 1_000_000
    assert step.step_ns(StepShape(decodes=3, kv_tokens=500, prefill_tokens=7)) == 1_000_000 + 100_000 + 1000


def test_the_host_takes_its_time_per_row() -> None:
    assert LinearStep(LinearParams(host_us=5, host_row_us=2)).host_ns(3) == 11_000
