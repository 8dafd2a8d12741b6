"""One timer looks after many deadlines."""

import asyncio

from headway.adapters.http1.sweep import NEVER, Sweep
from headway.live.loop import run_loop


class Member:
    def __init__(self, deadline: float) -> None:
        self.deadline, self.was_late = deadline, asyncio.Event()

    def late(self) -> None:
        self.was_late.set()


def test_tells_who_is_late_once_and_nobody_else() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sweep = Sweep(loop, 0.01)
        early, never, gone = Member(loop.time()), Member(NEVER), Member(loop.time())
        for member in (early, never, gone):
            sweep.add(member)
        sweep.remove(gone)
        async with asyncio.timeout(10):
            await early.was_late.wait()
        assert early.deadline == NEVER
        assert not never.was_late.is_set()
        assert not gone.was_late.is_set()
        sweep.remove(early)
        sweep.remove(never)
        assert len(sweep) == 0

    run_loop(main())
