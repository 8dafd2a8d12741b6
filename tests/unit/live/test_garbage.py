import gc
from collections.abc import Iterator

import pytest

from headway.core.units import NS_PER_S, Ns
from headway.live.garbage import BUSY_S, IDLE_S, YOUNG_MAX, Garbage


class Hand:
    """A clock that is set by hand; `tick`: what every look at it takes."""

    def __init__(self) -> None:
        self.ns, self.tick = 0, 0

    def now_ns(self) -> Ns:
        self.ns += self.tick
        return self.ns


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def garbage(hand: Hand) -> Iterator[Garbage]:
    made = Garbage(hand)
    made.settle()
    yield made
    made.close()


def loop() -> None:
    """Leave one cycle."""
    ring: list[object] = []
    ring.append(ring)


def test_what_is_there_when_it_settles_is_not_visited_again(hand: Hand) -> None:
    before, thresholds = gc.get_freeze_count(), gc.get_threshold()
    made = Garbage(hand)
    made.settle()
    assert gc.get_freeze_count() > before + 1000
    assert len(gc.get_objects()) < 1000
    made.close()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds


def test_cycles_are_collected_when_they_are_many_and_no_full_pass_begins_by_itself(garbage: Garbage) -> None:
    for _ in range(3 * YOUNG_MAX):
        loop()
    assert garbage.figures.young in (2, 3)
    assert garbage.figures.full == 0
    assert len(gc.get_objects()) < 1.5 * YOUNG_MAX


def test_what_comes_and_goes_is_never_looked_at(garbage: Garbage) -> None:
    for _ in range(10):
        held: list[list[int]] = [[number] for number in range(YOUNG_MAX // 2)]
        del held
    assert garbage.figures.young == 0


@pytest.mark.parametrize(("is_idle", "after_s"), [(True, IDLE_S), (False, BUSY_S)])
def test_everything_is_walked_after_a_while_and_sooner_where_nothing_runs(
    garbage: Garbage, hand: Hand, is_idle: bool, after_s: int
) -> None:
    for seconds, passes in ((0, 0), (after_s - 1, 0), (after_s, 1), (2 * after_s - 1, 1), (2 * after_s, 2)):
        hand.ns = seconds * NS_PER_S
        garbage.look(is_idle=is_idle)
        assert garbage.figures.full == passes


def test_a_pause_is_what_passes_on_the_clock(garbage: Garbage, hand: Hand) -> None:
    gc.disable()  # only what is asked for
    hand.tick = 5
    for _ in range(3):
        gc.collect(0)
    gc.collect()
    hand.tick = 0
    gc.enable()
    figures = garbage.figures
    assert (figures.young, figures.young_ns, figures.full, figures.full_ns, figures.longest_ns) == (3, 15, 1, 5, 5)
