"""The LLM machine against the naive scheduler that visits everybody: identical plans in random worlds."""

from collections import Counter
from random import Random

import pytest
from tests.property.differential import DifferentialWorld
from tests.property.llm_world import ORDERS, random_config

WORLDS = 60  # per order in the daily run
WORLDS_SLOW = 2000


def play(order: str, seeds: range) -> Counter[str]:
    """Play worlds of one order; a failure names the seed."""
    stats: Counter[str] = Counter()
    for seed in seeds:
        rng = Random(f"{order}-{seed}")
        try:
            stats += DifferentialWorld(rng, random_config(rng, (order,))).play()
        except Exception as error:
            raise AssertionError(f"order {order}, seed {seed}: {error!r}") from error
    return stats


# SPEC B9, B1, B3, B4
@pytest.mark.parametrize("order", ORDERS)
def test_the_machine_plans_what_the_naive_scheduler_plans(order: str) -> None:
    stats = play(order, range(WORLDS))
    for event in ("stop", "length", "cancelled", "refused", "preemptions", "stalls", "hit_tokens"):
        assert stats[event], f"{event} never happened: the worlds are too kind"
    assert stats["visits"] < stats["naive_visits"]


# A head that was known to be blocked was looked at before its turn: a prompt ahead of it got twice the chunk.
def test_a_head_is_known_to_be_blocked_only_when_its_turn_comes() -> None:
    play("shortest_remaining", range(958, 959))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_the_machine_plans_what_the_naive_scheduler_plans_in_thousands_of_worlds(order: str) -> None:
    stats = play(order, range(WORLDS, WORLDS + WORLDS_SLOW))
    print(order, dict(stats))  # noqa: T201  the figures of the report
