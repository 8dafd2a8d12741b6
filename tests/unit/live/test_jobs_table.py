"""The table's driver: what it says of a table that is slow."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.integration.job_rig import settings

from headway.core.job_effects import KeepRows
from headway.core.units import NS_PER_S
from headway.live.jobs_table import TableDriver, Tables


# SPEC H3
def test_heartbeats_that_wait_longer_than_a_third_of_a_lease_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Too short a lease for the machine is the operator's to know before work is done twice."""
    times: list[float] = []

    async def keep(waits_s: tuple[float, ...]) -> None:
        tables = Tables(settings(tmp_path), "gw-1")
        answered = asyncio.Semaphore(0)
        driver = TableDriver(
            tables, lambda _: answered.release(), lambda: round(times.pop(0) * NS_PER_S), lambda *_: ()
        )
        for wait_s in waits_s:
            times.extend((100.0, 100.0 + wait_s))
            driver.perform(KeepRows((), 115 * NS_PER_S))
            await answered.acquire()
        tables.close()

    asyncio.run(keep((5.0, 6.0, 14.0, 1.0, 7.5)))
    said = [record.getMessage() for record in caplog.records if record.name == "headway.live.jobs_table"]
    assert [words.partition(": ")[0] for words in said] == [
        "heartbeats of jobs wait 6.0 s for the job table, and jobs.lease_s is 15 s",
        "heartbeats of jobs wait 7.5 s for the job table, and jobs.lease_s is 15 s",
    ]


# SPEC H3
def test_heartbeats_go_first_and_let_one_other_go_between_two(tmp_path: Path) -> None:
    """What waits keeps its order otherwise, what nobody waits for is not begun, and what breaks tells whom it asked."""

    async def order() -> list[str]:
        tables, done = Tables(settings(tmp_path), "gw-1"), list[str]()
        has_begun, is_free = threading.Event(), threading.Event()
        held = tables.ask(lambda: has_begun.set() or is_free.wait())
        await asyncio.to_thread(has_begun.wait)
        left = tables.ask(partial(done.append, "left"))
        asked = [tables.ask(partial(done.append, name), name.startswith("beat")) for name in ("a", "b", "beat 1", "c")]
        asked += [tables.ask(partial(done.append, name), is_beat=True) for name in ("beat 2", "beat 3")]
        broken = tables.ask(lambda: 1 // 0)
        left.cancel()
        await asyncio.sleep(0)  # asyncio tells the thread's future in its next turn
        is_free.set()
        tables.close()
        await asyncio.gather(held, *asked)
        with pytest.raises(ZeroDivisionError):
            await broken
        with pytest.raises(RuntimeError):
            tables.ask(partial(done.append, "late"))
        return done

    assert asyncio.run(order()) == ["beat 1", "beat 2", "a", "beat 3", "b", "c"]
