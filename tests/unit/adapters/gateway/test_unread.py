"""Clients that take nothing, or little by little (SPEC B5, M5). Time leaps."""

import asyncio

import pytest
from tests.unit.adapters.gateway.playback.fakes import leap, on_leaps

from headway.adapters.gateway.unread import Unread


class Pipe(asyncio.Transport):
    """Holds bytes until somebody takes them."""

    left = 100
    is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.is_aborted = True


def watched() -> tuple[Pipe, Unread]:
    pipe = Pipe()
    unread = Unread(asyncio.get_running_loop(), pipe, 10.0)
    unread.watch()
    return pipe, unread


def test_who_takes_nothing_is_dropped_after_the_time() -> None:
    async def test() -> None:
        pipe, _ = watched()
        await leap(9.9)
        assert not pipe.is_aborted
        await leap(0.2)
        assert pipe.is_aborted

    on_leaps(test)


def test_who_takes_a_byte_in_that_time_is_waited_for() -> None:
    async def test() -> None:
        pipe, _ = watched()
        for _ in range(50):
            await leap(9.0)
            pipe.left -= 1
        assert not pipe.is_aborted
        await leap(20.1)
        assert pipe.is_aborted

    on_leaps(test)


@pytest.mark.parametrize("how", ["all", "stop"])
def test_nobody_is_dropped_for_whom_nothing_waits(how: str) -> None:
    async def test() -> None:
        pipe, unread = watched()
        if how == "stop":
            unread.stop()
        else:
            pipe.left = 0
        await leap(100)
        assert not pipe.is_aborted
        unread.watch()
        assert (unread._timer is not None) is (how == "stop")

    on_leaps(test)
