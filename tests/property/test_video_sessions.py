"""Whatever happens to streaming sessions, in whatever order, nothing of them is left (SPEC H5)."""

from random import Random

import pytest
from tests.unit.adapters.gateway.playback.fakes import (
    SESSIONS,
    Cinema,
    Viewer,
    leap,
    on_leaps,
    one_session,
)

from headway.core.effects import ErrorOut
from headway.core.request import FinishReason

OPEN_MAX = 4
REFUSED = ErrorOut(429, "quota_exceeded", "No device time is left.", 1000)
LOST = (FinishReason.LOST, ErrorOut(502, "engine_lost", "It was lost."))
MOVES = ("open", "open", "wait", "wait", "wait", "change", "stop", "leave", "refuse", "lose", "pause", "read", "cut")


class Play:
    """One drawn story."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.cinema = Cinema(one_session(open_max=OPEN_MAX, tenant_open_max=OPEN_MAX))
        self.viewers: list[Viewer] = []
        self.cut: list[Viewer] = []

    async def run(self) -> None:
        for _ in range(40):
            await self.move(self.draw.choice(MOVES))
            open_now = (await self.cinema.ask("GET", SESSIONS))[1]["data"]
            assert len(open_now) <= OPEN_MAX
            assert len(self.cinema.projector.open) <= len(open_now)  # a session makes one chunk at a time
        for viewer in self.viewers:
            viewer.reads.set()
            await self.stop(viewer)
        for viewer in self.viewers:
            await viewer.done
            self.ended(viewer)
        await self.cinema.left_nothing()
        assert all(answer.done() for _, answer in self.cinema.jobs.answers.values())  # no key is held

    async def move(self, what: str) -> None:
        projector, soon = self.cinema.projector, len(self.cinema.projector.painted) + self.draw.randrange(2)
        if what == "open":
            seconds = self.draw.choice([None, 2, 6])
            headers = self.draw.choice([None, {"idempotency-key": "a"}, {"idempotency-key": "b"}])
            self.viewers.append(self.cinema.watch(headers, seconds=seconds, ahead=self.draw.randint(1, 3)))
            await leap(self.draw.choice([0, 0, 0.1]))
        elif what == "wait":
            await leap(self.draw.choice([0.0, 0.25, 0.5, 2.0, 70.0]))
        elif what == "refuse":
            projector.refusals[soon] = REFUSED
        elif what == "lose":
            projector.errors[soon] = LOST
        elif self.viewers:
            await self.to(what, self.draw.choice(self.viewers))

    async def to(self, what: str, viewer: Viewer) -> None:
        if what == "leave":
            viewer.leave()
        elif what == "cut" and viewer not in self.cut:
            self.cut.append(viewer)  # a server stops once; what is cancelled again is a process that ends
            viewer.done.cancel()
        elif what == "cut":
            pass
        elif what == "pause":
            viewer.reads.clear()
        elif what == "read":
            viewer.reads.set()
        elif what == "stop":
            await self.stop(viewer)
        elif viewer.events and "id" in viewer.events[0]:
            status, _ = await self.cinema.ask("POST", f"{SESSIONS}/{viewer.events[0]['id']}", {"prompt": "x"})
            assert status in (200, 404, 409)

    async def stop(self, viewer: Viewer) -> None:
        if viewer.events and "id" in viewer.events[0]:
            status, _ = await self.cinema.ask("DELETE", f"{SESSIONS}/{viewer.events[0]['id']}")
            assert status in (200, 404)

    def ended(self, viewer: Viewer) -> None:
        """Completely: with its sums, with an error, or refused; unless nobody was there to hear it."""
        if viewer.is_gone:
            return
        assert viewer.is_complete
        last = viewer.events[-1] if viewer.events else None
        if last is None:
            assert viewer.status in (409, 429, 503)
            return
        assert viewer.is_done is (last.get("type") == "video.session.completed")
        assert viewer.is_done is not ("error" in last)
        assert [one["index"] for one in viewer.chunks] == list(range(len(viewer.chunks)))
        if viewer.is_done:
            assert last["chunks"] == len(viewer.chunks)


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_events_leaves_anything(seed: int) -> None:
    on_leaps(Play(seed).run)
