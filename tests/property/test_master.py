"""The master property (SPEC B7): scheduling never changes an output. Each feature alone, and all, against none."""

from random import Random

import pytest
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig

from headway.core.request import LlmRequest
from headway.cost.llm import StepCost, StepCostParams

ROOMY = make_limits(kv_blocks=400, max_model_len=200)
TIGHT = make_limits(kv_blocks=14, max_model_len=48)
TIGHT_SWAP = make_limits(kv_blocks=14, max_model_len=48, host_slots=30)
ALONE: dict[str, object] = {"limits": ROOMY, "max_seqs": 1, "async_depth": 1, "prefix_cache": False}

FEATURES: dict[str, dict[str, object]] = {
    "batching": {**ALONE, "max_seqs": 8},
    "chunking": {**ALONE, "chunk_params": {"tokens": 3}},
    "prefix cache": {**ALONE, "prefix_cache": True},
    "two steps open": {**ALONE, "async_depth": 2},
    "three steps open": {**ALONE, "async_depth": 3},
    "four steps open": {**ALONE, "async_depth": 4},
    "preemption by recompute": {**ALONE, "limits": TIGHT, "max_seqs": 8},
    "preemption by swap": {**ALONE, "limits": TIGHT_SWAP, "max_seqs": 8, "swap": True},
    "priority and displacement": {**ALONE, "order": "priority", "max_seqs": 2},
    "longest prefix first": {**ALONE, "order": "lpm", "prefix_cache": True, "max_seqs": 2},
    "all": {
        "limits": TIGHT_SWAP,
        "max_seqs": 6,
        "async_depth": 3,
        "swap": True,
        "order": "priority",
        "chunk": "tpot_budget",
        "chunk_params": {"tokens": 7, "tokens_min": 2},
        "step_tokens": 16,
    },
}


def mix(seed: int) -> list[LlmRequest]:
    """Conversations with shared beginnings, different lengths, seeds and urgencies."""
    rng = Random(seed)
    shared = tuple(rng.randint(1, 4) for _ in range(12))
    requests = []
    for number in range(14):
        head = shared[: rng.choice([0, 4, 9, 12])]
        prompt = head + tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 12)))
        requests.append(
            make_request(
                number,
                prompt,
                rng.randint(1, 20),
                arrived_ns=number,
                urgency=rng.randint(0, 2),
                seed=rng.randint(0, 3),
                ignore_eos=rng.random() < 0.5,
            )
        )
    return requests


def outputs(requests: list[LlmRequest], settings: dict[str, object], *, cancel: bool = False) -> list[tuple[int, ...]]:
    """Tokens per request; with `cancel`, strangers arrive and leave in between."""
    belief = StepCost(StepCostParams(kv_bytes_per_block=1000, learn=False))
    rig, rng = Rig(belief=belief, **settings), Random(5)  # type: ignore[arg-type]  # settings are data
    numbers: list[int] = []
    strangers: list[int] = []
    for at, request in enumerate(requests):
        numbers.append(rig.add(request))
        if cancel:
            strangers.append(rig.add(make_request(900 + at, (*request.prompt, 2), 15, ignore_eos=True, arrived_ns=at)))
            if rng.random() < 0.7:
                rig.stop(strangers[rng.randrange(len(strangers))])
        if at % 3 == 0:
            rig.step()
    while strangers and rig.machine.live:
        rig.stop(strangers.pop())
        for _ in range(3):
            if rig.machine.runnable or rig.open:
                rig.step()
    rig.drain()
    return [tuple(rig.tokens[number]) for number in numbers]


# SPEC B7
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("seed", range(4))
def test_no_feature_changes_an_output(feature: str, seed: int) -> None:
    requests = mix(seed)
    assert outputs(requests, FEATURES[feature]) == outputs(requests, ALONE)


# SPEC B7, B5
@pytest.mark.parametrize("feature", ["batching", "all", "preemption by swap", "four steps open"])
@pytest.mark.parametrize("seed", range(4))
def test_cancelling_others_changes_no_output(feature: str, seed: int) -> None:
    requests = mix(seed)
    assert outputs(requests, FEATURES[feature], cancel=True) == outputs(requests, ALONE)


def test_the_tight_settings_do_preempt_in_both_ways() -> None:
    for feature, counter in (("preemption by recompute", "recomputed_tokens"), ("preemption by swap", "swaps")):
        settings = FEATURES[feature]
        rig = Rig(belief=StepCost(StepCostParams(kv_bytes_per_block=1000, learn=False)), **settings)  # type: ignore[arg-type]
        for request in mix(0):
            rig.add(request)
        rig.drain()
        assert rig.machine.counters()[counter] > 0, feature
