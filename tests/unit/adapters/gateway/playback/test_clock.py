"""Playback: what is due when, and how far ahead chunks are made (SPEC H5)."""

import pytest

from headway.adapters.gateway.playback.clock import Playback

TEN = 10


def test_a_chunk_is_due_when_those_before_it_were_played() -> None:
    playback = Playback(ahead=1)
    assert (playback.due_ns, playback.late_ns(500)) == (None, 0)
    playback.sent(100, TEN)
    assert (playback.due_ns, playback.late_ns(110), playback.late_ns(113)) == (110, 0, 3)
    playback.sent(105, TEN)  # before it is played
    assert playback.due_ns == 120


def test_a_late_chunk_is_played_when_it_comes_and_moves_all_that_follow() -> None:
    playback = Playback(ahead=1)
    playback.sent(100, TEN)
    playback.sent(117, TEN)
    assert playback.due_ns == 127


@pytest.mark.parametrize(("ahead", "opens"), [(1, [0, 100, 110, 120]), (2, [0, 0, 100, 110]), (8, [0] * 4)])
def test_a_chunk_is_begun_when_so_many_before_it_begin_to_be_played(ahead: int, opens: list[int]) -> None:
    playback, found = Playback(ahead), []
    for number in range(4):
        found.append(playback.opens_ns)
        playback.sent(100 + number, TEN)
    assert found == opens
