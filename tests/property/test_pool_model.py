"""A million random operations on block pool and prefix index against a simple reference model."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.pool_model import PoolDriver

OPERATIONS = 1_000_000  # calls of the pool, in four drives


# SPEC B2, B8
@pytest.mark.parametrize(("blocks", "weak"), [(12, False), (40, False), (24, True), (160, False)])
def test_a_million_operations_leak_nothing_and_hit_nothing_wrong(blocks: int, weak: bool) -> None:
    driver = PoolDriver(Random(f"{blocks}-{weak}"), blocks, weak=weak)
    turns = 0
    while driver.operations < OPERATIONS // 4:
        driver.turn()
        turns += 1
        if turns % 500 == 0:
            driver.compare()
    driver.drain()
    assert driver.hits > 10_000


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(4, 20), st.booleans())
def test_short_drives_that_shrink(rng: Random, blocks: int, weak: bool) -> None:
    driver = PoolDriver(rng, blocks, weak=weak)
    for _ in range(60):
        driver.turn()
        driver.compare()
    driver.drain()
