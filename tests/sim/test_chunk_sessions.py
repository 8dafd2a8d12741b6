"""Streaming sessions beside long videos on one device: who is served first decides whether a chunk is there before the
one before it has been played (SPEC H5, F5, F6).

Wan2.1-1.3B on one H100. Two sessions of 20 chunks: 448x256, 64 new frames at 16 per second after 17 that are given, 4
steps (1.2 s of every 4 alone); a chunk is asked for when the one before it is there, two chunks ahead of its playback
at most, and playback starts 8 s after a session does. Beside them three videos of 832x480, 81 frames and 50 steps (49 s
alone), 40 s apart. Measured, as asserted below:

| order | interrupts | chunks in time | mean of a video |
|---|---|---|---|
| fifo | no | 2 % | 61 s |
| fifo | yes | 2 % | 61 s |
| least_slack | no | 2 % | 97 s |
| least_slack | yes | 100 % | 118 s |
"""

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace
from tests.sim.studios import EXACT, Studio

from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import Content, DiffusionRequest
from headway.core.units import NS_PER_S, Ns
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.registry import PolicyChoice
from headway.sim.painter import latents_of, picture_alone
from headway.sim.pools import PoolParams
from headway.workload.offered import Offered

MODEL = ModelId("Wan2.1-1.3B")
CONTEXT, NEW, FPS = 17, 64, 16
SESSIONS, CHUNKS, VIDEOS = 2, 20, 3
STARTUP_NS, CHUNK_NS = 8 * NS_PER_S, NEW * NS_PER_S // FPS


class Streaming:
    """Sessions that ask for chunk after chunk, and videos that come by the clock."""

    def __init__(self) -> None:
        self.chunks: dict[RequestId, tuple[int, int, DiffusionRequest]] = {}  # session, place in it

    def first(self) -> Iterator[Offered]:
        firsts = [self._chunk(session, 0, session * 5 * NS_PER_S, None) for session in range(SESSIONS)]
        videos = [self._video(number) for number in range(VIDEOS)]
        yield from (Offered(each, 0) for each in sorted([*firsts, *videos], key=lambda each: each.arrived_ns))

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:
        session, place, before = self.chunks.get(request, (0, CHUNKS, None))
        if before is None or place + 1 == CHUNKS:
            return None
        soonest_ns = self.played_ns(session, place + 1) - 2 * CHUNK_NS
        return Offered(self._chunk(session, place + 1, max(ended_ns, soonest_ns), before), 0)

    @staticmethod
    def played_ns(session: int, place: int) -> Ns:
        return session * 5 * NS_PER_S + STARTUP_NS + place * CHUNK_NS

    def _chunk(self, session: int, place: int, at_ns: Ns, before: DiffusionRequest | None) -> DiffusionRequest:
        name = RequestId(f"req-{session}-{place}")
        given = b"" if before is None else latents_of(before, picture_alone(before))
        made = DiffusionRequest(
            id=name,
            tenant=TenantId("live"),
            model=MODEL,
            steps=4,
            height=256,
            width=448,
            seed=place,
            arrived_ns=at_ns,
            frames=NEW + CONTEXT if given else NEW + 1,
            given_frames=CONTEXT if given else 0,
            hand_on=CONTEXT,
            fps=FPS,
            content=Content(f"session {session}", form="mp4", given=given),
            played_ns=self.played_ns(session, place),
        )
        self.chunks[name] = session, place, made
        return made

    @staticmethod
    def _video(number: int) -> DiffusionRequest:
        name, at_ns = RequestId(f"req-video-{number}"), (3 + 40 * number) * NS_PER_S
        return DiffusionRequest(
            name, TenantId("batch"), MODEL, 50, 480, 832, number, at_ns, frames=81, fps=FPS, content=Content(form="mp4")
        )


class Streamed:
    """Share of chunks in time, in percent, and the mean time of a video in seconds."""

    def __init__(self, order: str, *, preempts: bool) -> None:
        params = DiffusionParams(order=PolicyChoice(order), preempt=Preemption(times_max=50) if preempts else None)
        pool = PoolParams(name="all", kind="diffusion", model=MODEL, diffusion=params, truth=EXACT)
        source = Streaming()
        self.studio = Studio(pool).run(source)
        ended = {record.request: record for record in self.studio.evidence()}
        assert {record.outcome for record in ended.values()} == {"ok"}
        assert len(source.chunks) == SESSIONS * CHUNKS
        in_time = [ended[name].ended_ns <= made.played_ns for name, (_, _, made) in source.chunks.items()]
        self.in_time = round(100 * sum(in_time) / len(in_time))
        videos = [record.e2e_ms for name, record in ended.items() if name not in source.chunks]
        self.video_s = round(sum(videos) / len(videos) / 1e3)
        for name, (_, _, made) in source.chunks.items():
            bodies = [one.body for show in self.studio.streams[name].shown for one in show.made]
            assert bodies == [latents_of(made, picture_alone(made)), picture_alone(made)]


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, bool], Streamed]:
    return {
        (order, preempts): Streamed(order, preempts=preempts)
        for order in ("fifo", "least_slack")
        for preempts in (False, True)
    }


def test_chunks_meet_their_playback_where_a_video_gives_way_to_the_least_slack(
    runs: dict[tuple[str, bool], Streamed],
) -> None:
    found = {key: (run.in_time, run.video_s) for key, run in runs.items()}
    assert found == {
        ("fifo", False): (2, 61),
        ("fifo", True): (2, 61),
        ("least_slack", False): (2, 97),
        ("least_slack", True): (100, 118),
    }


def test_nothing_is_lost_by_that(runs: dict[tuple[str, bool], Streamed]) -> None:
    ends = {max(record.ended_ns for record in run.studio.evidence()) for run in runs.values()}
    assert max(ends) - min(ends) < NS_PER_S  # the device has the same work, in another order


def test_a_chunk_whose_replica_dies_goes_on_elsewhere_and_hands_on_what_it_would_have() -> None:  # SPEC F6
    source = Streaming()
    first = next(each.request for each in source.first() if each.request.id in source.chunks)
    assert isinstance(first, DiffusionRequest)
    given = latents_of(first, picture_alone(first))
    chunks = [  # one for each replica
        replace(
            first,
            id=RequestId(f"req-next-{number}"),
            steps=20,
            frames=NEW + CONTEXT,
            given_frames=CONTEXT,
            content=Content(f"next {number}", form="mp4", given=given),
            save_every=2,
        )
        for number in range(2)
    ]
    pool = PoolParams(name="all", kind="diffusion", model=MODEL, replicas=2, truth=EXACT)
    studio = Studio(pool)
    studio.sim.at(2 * NS_PER_S, lambda _: studio.sim.kill(NodeId("rep-all-0")))
    studio.run(chunks)
    for chunk in chunks:
        shown = [one for show in studio.streams[chunk.id].shown for one in show.made]
        bodies = [one.body for one in shown if one.kind != "checkpoint"]
        assert bodies == [latents_of(chunk, picture_alone(chunk)), picture_alone(chunk)]
    assert dict(studio.front.recovery_figures())["resumed"] == 1
