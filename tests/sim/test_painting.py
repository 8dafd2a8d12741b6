"""Pictures that are looked at: whatever happens on the way, each is the one that it would be alone (SPEC F6, F7)."""

from collections import Counter

from msgspec.structs import replace
from tests.sim.studios import EXACT, FRONT_CONFIG, Studio

from headway.core.artifacts import Made
from headway.core.events import MessageArrived
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Drain
from headway.core.request import Content, DiffusionRequest
from headway.core.units import NS_PER_S
from headway.sched.diffusion.params import DiffusionParams, Watchdog
from headway.sched.dispatch import Patience
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.painter import picture_alone
from headway.sim.pools import PoolParams

MODEL = "FLUX.1-dev"


def pool(replicas: int = 2, **params: int) -> PoolParams:
    return PoolParams(name="all", kind="diffusion", model=MODEL, replicas=replicas, diffusion=DiffusionParams(**params))  # type: ignore[arg-type]  # numbers


def wanted(number: int, at_s: float = 0.0, **more: object) -> DiffusionRequest:
    name = RequestId(f"req-{number}")
    at_ns = round(at_s * NS_PER_S)
    return DiffusionRequest(
        name,
        TenantId("t"),
        ModelId(MODEL),
        28,
        1024,
        1024,
        100 * number,
        at_ns,
        **more,  # type: ignore[arg-type]  # by name
    )


def got(studio: Studio, request: DiffusionRequest) -> list[Made]:
    """Everything that its client was shown, in order."""
    return [made for show in studio.streams[request.id].shown for made in show.made]


def finished(studio: Studio, request: DiffusionRequest) -> list[bytes]:
    return [made.body for made in got(studio, request) if made.kind in ("picture", "video")]


def test_previews_checkpoints_and_pictures_come_in_order() -> None:  # SPEC H2
    request = wanted(1, n=2, save_every=10, content=Content(previews=3))
    studio = Studio(pool(1)).run([request])
    kinds = [(made.kind, made.index, made.steps) for made in got(studio, request)]
    assert kinds == [
        ("preview", 0, 7),
        ("checkpoint", 0, 10),
        ("preview", 1, 14),
        ("checkpoint", 0, 20),
        ("preview", 2, 21),
        ("picture", 0, 28),
        ("picture", 1, 28),
    ]
    assert finished(studio, request) == [picture_alone(request, 0), picture_alone(request, 1)]
    done = [show.done for show in studio.streams[request.id].shown]
    assert done == sorted(done)
    assert done[-1] == 28


def test_a_batch_whose_replica_dies_goes_on_elsewhere_from_its_checkpoints() -> None:  # vllm-omni PR#2729
    requests = [wanted(number, save_every=4) for number in range(8)]
    studio = Studio(pool(2))
    studio.sim.at(round(2.0 * NS_PER_S), lambda _: studio.sim.kill(NodeId("rep-all-0")))
    studio.run(requests)
    assert Counter(record.outcome for record in studio.evidence()) == {"ok": 8}
    for request in requests:
        assert finished(studio, request) == [picture_alone(request)]
    resumed = [dict(studio.front.recovery_figures())["resumed"]]
    assert resumed[0] >= 1
    assert all(account.reserved == 0 for account in studio.front.ledger.views())


def test_a_video_leaves_a_replica_that_drains_and_is_the_one_it_would_be_alone() -> None:  # SPEC F6
    requests = [wanted(number) for number in range(2)]
    studio = Studio(pool(2), front=replace(FRONT_CONFIG, patience=Patience(move_min_s=0.5)))
    drained = NodeId("rep-all-0")
    drain = Drain("maintenance")
    studio.sim.at(NS_PER_S, lambda now: studio.sim.feed(drained, MessageArrived(now, "test", CONTROL, drain)))
    studio.run(requests)
    assert Counter(record.outcome for record in studio.evidence()) == {"ok": 2}
    for request in requests:
        assert finished(studio, request) == [picture_alone(request)]
    assert dict(studio.front.recovery_figures())["resumed"] == 1
    moved = next(record for record in studio.evidence() if "drains" in str(record.decisions))
    assert moved.replica == "rep-all-1"
    assert all(account.reserved == 0 for account in studio.front.ledger.views())


def test_an_engine_that_fails_gives_its_batch_back_and_serves_the_next_one() -> None:  # vllm-omni#2327
    requests = [wanted(number, at_s=0.1 * number, save_every=4) for number in range(6)]
    studio = Studio(pool(1))

    def fail(_: int) -> None:
        executor = studio.sim.lives[NodeId("rep-all-0")].executor
        assert executor is not None
        executor.fail_next()

    studio.sim.at(round(1.5 * NS_PER_S), fail)
    studio.run(requests)
    assert Counter(record.outcome for record in studio.evidence()) == {"ok": 6}
    for request in requests:
        assert finished(studio, request) == [picture_alone(request)]


def test_one_bad_picture_ends_its_own_request_only() -> None:  # vllm-omni#4634
    bad = wanted(1, content=Content(pictures=(b"",)))
    good = [wanted(number) for number in (0, 2, 3)]
    studio = Studio(pool(1)).run([good[0], bad, *good[1:]])
    assert studio.streams[bad.id].end is not None
    error = studio.streams[bad.id].end.error
    assert error is not None
    assert (error.status, error.code) == (400, "bad_input")
    for request in good:
        assert finished(studio, request) == [picture_alone(request)]


def test_a_member_that_is_cancelled_leaves_and_the_batch_goes_on() -> None:  # SPEC H2, vllm-omni#1347
    requests = [wanted(number) for number in range(4)]
    studio = Studio(pool(1, steps_per_plan=4))
    studio.sim.at(round(5.0 * NS_PER_S), lambda _: studio.sim.leave(FRONT, requests[2].id))
    studio.run(requests)
    assert finished(studio, requests[2]) == []
    for number in (0, 1, 3):
        assert finished(studio, requests[number]) == [picture_alone(requests[number])]


def test_a_stuck_engine_is_started_anew_and_its_pictures_come_from_elsewhere() -> None:  # ComfyUI#3670
    requests = [wanted(number, save_every=4) for number in range(4)]
    watched = PoolParams(
        name="all",
        kind="diffusion",
        model=MODEL,
        replicas=2,
        diffusion=DiffusionParams(watchdog=Watchdog(factor=3.0, floor_s=1.0)),
        truth=EXACT,
    )
    studio = Studio(watched)

    def hang(_: int) -> None:
        studio.pools[0].truths[NodeId("rep-all-0")].slowdown = 1e6

    def heal(_: int) -> None:
        studio.pools[0].truths[NodeId("rep-all-0")].slowdown = 1.0

    studio.sim.at(round(1.5 * NS_PER_S), hang)
    studio.sim.at(round(3.0 * NS_PER_S), heal)
    studio.run(requests)
    assert Counter(record.outcome for record in studio.evidence()) == {"ok": 4}
    for request in requests:
        assert finished(studio, request) == [picture_alone(request)]
    assert [studio.sim.lives[NodeId(f"rep-all-{place}")].incarnation for place in range(2)] == [2, 1]
    assert dict(studio.front.recovery_figures())["resumed"] >= 1
