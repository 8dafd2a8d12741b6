"""Random worlds around the LLM machine."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.llm_world import World, random_config

WORLDS = 200
BATCHES = 2


# SPEC B7, B8, B5, B6
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_worlds_end_with_exact_outputs_and_every_block_back(batch: int) -> None:
    stats: Counter[str] = Counter()
    for seed in range(batch * WORLDS // BATCHES, (batch + 1) * WORLDS // BATCHES):
        rng = Random(seed)
        try:
            stats += World(rng, random_config(rng)).play()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    for event in ("stop", "length", "cancelled", "refused", "preemptions", "stalls", "hit_tokens", "swap_in", "frozen"):
        assert stats[event], f"{event} never happened: the worlds are too kind"


# SPEC B8
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_short_worlds_that_shrink(rng: Random) -> None:
    World(rng, replace(random_config(rng), turns=15)).play()
