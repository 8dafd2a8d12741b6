"""Deadlines of jobs over a restart of their gateway."""

import asyncio
import time
from pathlib import Path

from tests.integration.job_rig import desk

from headway.core.request import Slo
from headway.core.units import NS_PER_S
from headway.live.clock import Clock

DOWN_NS = 3600 * NS_PER_S


class AfterwardsClock(Clock):
    """Of a run that begins when the gateway was down for DOWN_NS."""

    def epoch_ns(self) -> int:
        return super().epoch_ns() + DOWN_NS


def test_a_job_keeps_its_deadline_while_its_gateway_is_down(tmp_path: Path) -> None:
    # SPEC L-4: one deadline passes meanwhile, one does not
    before = Clock(time.monotonic_ns() - 5000 * NS_PER_S)  # times of this run mean nothing in the next one
    due_ns = {"video_1": before.now_ns() + DOWN_NS // 2, "video_2": before.now_ns() + DOWN_NS * 2}

    async def first() -> None:
        async with desk(tmp_path, clock=before) as rig:
            rig.painter.hold(5)
            for job, deadline_ns in due_ns.items():
                await rig.jobs.create(rig.new(job, slo=Slo(e2e_deadline_ns=deadline_ns)))
                await rig.at(job, 50)
            assert {one.id: one.slo.e2e_deadline_ns for one in rig.painter.submitted} == due_ns

    async def second(after: Clock) -> None:
        async with desk(tmp_path, clock=after) as rig:
            late, done = await rig.over("video_1"), await rig.over("video_2")
            assert late.error is not None
            assert (late.status, late.error.code) == ("failed", "deadline_passed")
            assert (done.status, done.error) == ("completed", None)
            moved_ns = before.epoch_ns() - after.epoch_ns()
            for request in rig.painter.submitted:
                found = request.slo.e2e_deadline_ns
                assert found is not None
                # Unix and monotonic time are read one after the other, at most this far apart
                assert abs(found - (due_ns[request.id] + moved_ns)) < NS_PER_S

    asyncio.run(first())
    asyncio.run(second(AfterwardsClock()))
