"""Chunks that keep running requests inside their TPOT."""

import pytest
from tests.property.llm_world import make_limits
from tests.property.rig import Rig

from headway.core.errors import ConfigError
from headway.core.request import Slo
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.policies.chunk.tpot_budget import TpotBudget

MS = 1_000_000
LIMITS = make_limits(kv_blocks=2000, max_model_len=4000)


def rig(tokens_min: int = 4, **params: object) -> Rig:
    """A step costs 10 ms and 0.1 ms per prompt token."""
    belief = StepCost(StepCostParams(base_ns=10 * MS, row_ns=0, kv_ns=0, token_ns=MS / 10, pair_ns=0, learn=False))
    params = {"tokens": 2000, "tokens_min": tokens_min, "fraction": 1.0, **params}
    return Rig(limits=LIMITS, belief=belief, chunk="tpot_budget", chunk_params=params, step_tokens=2000, async_depth=1)


def chunk_beside(r: Rig, prompt: int = 1000) -> int:
    """Size of the first chunk of a long prompt."""
    r.new(prompt, 2)
    return r.must_plan().chunks[0].count


def start(r: Rig, **slo: int) -> int:
    """A decoding request with this SLO."""
    seq = r.new(4, 50, slo=Slo(**slo))
    r.step()
    r.step()
    return seq


# SPEC B1
@pytest.mark.parametrize(("tpot_ms", "tokens"), [(20, 100), (35, 250), (10.05, 4), (5, 4)])
def test_the_chunk_is_what_the_tightest_tpot_leaves(tpot_ms: float, tokens: int) -> None:
    r = rig()
    start(r, tpot_ns=int(tpot_ms * MS))
    start(r, tpot_ns=200 * MS)
    assert chunk_beside(r) == tokens


def test_nobody_decodes_nobody_limits() -> None:
    assert chunk_beside(rig()) == 1000


def test_without_promise_there_is_no_limit_unless_one_is_configured() -> None:
    free, bound = rig(), rig(default_tpot_ms=30.0)
    start(free)
    start(bound)
    assert (chunk_beside(free), chunk_beside(bound)) == (1000, 200)


def test_an_end_to_end_deadline_is_spread_over_the_tokens_to_come() -> None:
    r = rig()
    start(r, e2e_deadline_ns=49 * 30 * MS)  # one of 50 tokens is there when it begins to decode at 0
    assert chunk_beside(r) == 200


def test_a_deadline_that_passed_asks_for_nothing() -> None:
    r = rig()
    r.now = 10
    start(r, e2e_deadline_ns=5)
    assert chunk_beside(r) == 1000


def test_the_limit_goes_with_the_request_that_set_it() -> None:
    r = rig()
    tight = start(r, tpot_ns=20 * MS)
    assert chunk_beside(r) == 100
    r.done()
    r.stop(tight)
    assert r.must_plan().chunks[0].count == 900


def test_prompts_move_however_tight_the_tpot_is() -> None:
    r = rig(tokens_min=7)
    start(r, tpot_ns=1)
    assert chunk_beside(r) == 7


def test_two_prompts_share_what_the_step_may_take() -> None:
    r = rig()
    start(r, tpot_ns=20 * MS)
    r.new(1000, 2)
    r.new(1000, 2)
    assert [chunk.count for chunk in r.must_plan().chunks] == [50, 50]


def test_the_minimum_holds_per_step_not_per_prompt() -> None:
    r = rig(tokens_min=6)
    start(r, tpot_ns=1)
    for _ in range(4):
        r.new(100, 2)
    assert r.must_plan().prefill_tokens == 6


# SPEC B9: the tightest promise is kept, not looked for
def test_its_state_is_the_decoding_requests_with_a_promise() -> None:
    r = rig()
    first, second = start(r, tpot_ns=20 * MS), start(r, tpot_ns=30 * MS)
    policy = r.machine.state.chunker
    assert isinstance(policy, TpotBudget)
    assert policy.limit_ns() == 20 * MS
    r.stop(first)
    assert policy.limit_ns() == 30 * MS
    r.stop(second)
    assert policy.limit_ns() is None


# SPEC L-3
def test_records_the_size_with_its_alternative_once_per_size() -> None:
    r = rig()
    start(r, tpot_ns=20 * MS)
    chunk_beside(r)
    r.done()
    r.step()
    (record,) = r.decisions("chunk")
    assert record.chosen == "100"
    assert [(option.name, option.score) for option in record.alternatives] == [
        ("100 tokens", 20.0 * MS),
        ("1000 tokens", 110.0 * MS),
    ]


def test_a_floor_above_the_ceiling_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokens_min = 9 is above tokens = 4"):
        rig(tokens_min=9, tokens=4)
