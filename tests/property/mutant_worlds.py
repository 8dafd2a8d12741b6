"""The worlds that a broken tree is played in: `python -m tests.property.mutant_worlds ENOUGH` prints how many of them
noticed something, and stops at ENOUGH of them (0: never)."""

import sys
from collections.abc import Callable, Iterator
from random import Random

from tests.property.differential import DifferentialWorld
from tests.property.llm_world import ORDERS, World, random_config
from tests.property.pool_model import PoolDriver
from tests.property.pressed import AheadDifferentialWorld, pressed_config

SEEDS = 700
PRESSED_ORDERS = (*ORDERS, "lpm", "lpm", "lpm", "lpm")  # what is evicted while its head waits decides rarely


def _roomy(seed: int) -> None:
    rng = Random(f"mutant-{seed}")
    kind = World if seed % 3 == 0 else DifferentialWorld
    kind(rng, random_config(rng, (ORDERS[seed % len(ORDERS)],))).play()


def _pressed(seed: int) -> None:
    rng = Random(f"pressed-{seed}")
    AheadDifferentialWorld(rng, pressed_config(rng, (PRESSED_ORDERS[seed % len(PRESSED_ORDERS)],))).play()


def _pool(seed: int) -> None:
    driver = PoolDriver(Random(seed), 12, weak=seed % 40 == 0)
    for _ in range(400):
        driver.turn()
    driver.drain()


def plays() -> Iterator[tuple[Callable[[int], None], int]]:
    """Every one, the kinds by turns."""
    for seed in range(SEEDS):
        yield (_roomy, _pressed)[seed % 2], seed // 2
        if seed % 20 == 0:
            yield _pool, seed


def notices(enough: int) -> Iterator[str]:
    """Those that noticed, by name."""
    found = 0
    for play, seed in plays():
        try:
            play(seed)
        except Exception as error:
            found += 1
            yield f"{play.__name__} {seed}: {error!r}"
            if found == enough:
                return


if __name__ == "__main__":
    for name in notices(int(sys.argv[1])):
        print(name.encode("ascii", "replace").decode()[:200])  # noqa: T201  what the caller counts
