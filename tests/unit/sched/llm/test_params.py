"""Combinations that cannot work are refused at load, naming both keys (SPEC B6)."""

import msgspec
import pytest
from tests.property.llm_world import make_limits

from headway.core.errors import ConfigError
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import CHUNKS, ORDERS, LlmParams
from headway.sched.registry import PolicyChoice, discover

BELIEF = StepCost(StepCostParams(kv_bytes_per_block=4096))
FREE_COPIES = StepCost(StepCostParams())


# SPEC B6
@pytest.mark.parametrize(
    ("settings", "belief", "host_slots", "keys"),
    [
        ({"step_tokens": 8, "max_seqs": 9}, BELIEF, 0, ("step_tokens = 8", "max_seqs = 9")),
        ({"swap": True}, BELIEF, 0, ("swap = true", "host_slots")),
        ({"swap": True}, None, 4, ("swap = true", "belief")),
        ({"swap": True}, FREE_COPIES, 4, ("swap = true", "cost.kv_bytes_per_block")),
        ({"order": PolicyChoice("lpm"), "prefix_cache": False}, BELIEF, 0, ("order.type = 'lpm'", "prefix_cache")),
        ({"chunk": PolicyChoice("tpot_budget")}, None, 0, ("chunk.type = 'tpot_budget'", "belief")),
        ({"chunk": PolicyChoice("dynamic")}, None, 0, ("chunk.type = 'dynamic'", "belief")),
        ({"order": PolicyChoice("least_slack")}, None, 0, ("order.type = 'least_slack'", "belief")),
        ({"order": PolicyChoice("shortest_predicted")}, None, 0, ("order.type = 'shortest_predicted'", "belief")),
        ({"pool": "counting"}, BELIEF, 0, ("pool = 'counting'", "prefix_cache = true")),
        ({"pool": "counting", "prefix_cache": False, "swap": True}, BELIEF, 4, ("pool = 'counting'", "swap = true")),
        ({"async_depth": 1, "overlap_prefills": False}, BELIEF, 0, ("overlap_prefills = false", "async_depth = 1")),
        ({"async_depth": 5}, BELIEF, 0, ("async_depth = 5", "4")),
        ({"watermark": 32}, BELIEF, 0, ("watermark = 32", "kv_blocks = 32")),
        (
            {"step_tokens": 100, "chunk": PolicyChoice("constant", {"tokens": 101})},
            BELIEF,
            0,
            ("chunk.params.tokens = 101", "step_tokens = 100"),
        ),
    ],
)
def test_what_cannot_work_is_refused_naming_both_keys(
    settings: dict[str, object], belief: StepCost | None, host_slots: int, keys: tuple[str, str]
) -> None:
    params = LlmParams(**settings)  # type: ignore[arg-type]  # the case is data
    with pytest.raises(ConfigError) as error:
        LlmMachine(params, make_limits(host_slots=host_slots), belief)
    assert all(key in str(error.value) for key in keys), error.value


def test_the_defaults_work() -> None:
    LlmMachine(LlmParams(), make_limits(), BELIEF).check_invariants()


@pytest.mark.parametrize("order", discover(ORDERS))
@pytest.mark.parametrize("chunk", discover(CHUNKS))
def test_every_pair_of_policies_works_with_its_defaults(order: str, chunk: str) -> None:
    params = LlmParams(order=PolicyChoice(order), chunk=PolicyChoice(chunk))
    LlmMachine(params, make_limits(), BELIEF).check_invariants()


def test_fcfs_and_constant_need_no_belief() -> None:
    LlmMachine(LlmParams(), make_limits(), None).check_invariants()


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="chunk_size"):
        msgspec.convert({"chunk_size": 4}, LlmParams)


@pytest.mark.parametrize("key", ["max_seqs", "step_tokens", "async_depth"])
def test_zero_is_refused_where_it_means_nothing(key: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({key: 0}, LlmParams)
