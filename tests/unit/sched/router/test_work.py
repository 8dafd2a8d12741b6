"""The work of diffusion replicas as a front knows it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, picture
from tests.unit.sched.router.views import View, llm, report

from headway.core.ids import NodeId, RequestId
from headway.core.reports import DenoiseMemory, ReplicaReport, ShapePreparation, WarmShape
from headway.core.request import Content, Request
from headway.cost.diffusion import left_ns
from headway.cost.diffusion_memory import fits
from headway.cost.first_runs import preparation_ns
from headway.sched.router import work as work_module
from headway.sched.router.fleet_view import Replica
from headway.sched.router.protocol import Scored
from headway.sched.router.work import KINDS_MAX, PendingWork, denoise_candidate, kind_of

ONE = left_ns(COST, picture("req-0"))


def own(work: PendingWork, request: Request) -> int:
    return work.own_ns(request, kind_of(request))


def heard(number: int = 1, **change: object) -> PendingWork:
    work = PendingWork()
    work.hear(report("rep-a", number, denoise_cost=COST, **change), 1000)
    return work


def test_reported_work_runs_off_by_itself() -> None:  # SPEC A5
    work = heard(queued_work_ns=500)
    assert [work.ahead_ns(at) for at in (1000, 1300, 1500, 9000)] == [500, 200, 0, 0]


def test_own_dispatches_count_until_a_report_has_seen_them() -> None:  # SPEC A5: else all go to the same replica
    work = heard(queued_work_ns=500)
    work.sent(picture("req-1"), 1)
    work.sent(picture("req-2"), 2)
    assert work.ahead_ns(1000) == 500 + 2 * ONE
    work.hear(report("rep-a", 2, denoise_cost=COST, queued_work_ns=700, submits_seen=1), 1200)
    assert work.ahead_ns(1200) == 700 + ONE
    work.ended(picture("req-2").id)
    assert work.ahead_ns(1200) == 700


def test_what_was_told_stays_until_the_next_report() -> None:
    work = heard(queued_work_ns=500)
    work.sent(picture("req-1"), 1)
    assert (work.told_ns, work.ahead_ns(9000)) == (500 + ONE, ONE)


def test_what_is_no_picture_or_goes_where_nobody_tells_is_no_work() -> None:
    work = heard()
    work.sent(llm("req-1"), 1)
    silent = PendingWork()
    silent.sent(picture("req-2"), 1)
    assert work.ahead_ns(1000) == silent.ahead_ns(1000) == 0


def test_a_forecast_is_the_end_of_the_request() -> None:  # SPEC F5: what admission compares with its deadline
    view = View(NodeId("rep-a"), work_ns=400, own_work_ns=ONE, denoise_cost=COST)
    candidate = denoise_candidate(view, Scored(view.id, 3.0))
    assert (candidate.seconds, candidate.confidence, candidate.score) == ((400 + ONE) / 1e9, 1.0, 3.0)
    unknown = denoise_candidate(View(NodeId("rep-b")), Scored(NodeId("rep-b"), 3.0))
    assert (unknown.seconds, unknown.confidence, unknown.reason) == (0.0, 0.0, "it tells no work")


def test_own_work_is_what_the_replica_believes_and_text_has_none() -> None:
    assert [own(heard(), picture("req-1")), own(heard(), llm("req-2"))] == [ONE, 0]
    assert own(PendingWork(), picture("req-1")) == 0


def test_own_work_follows_the_request_and_what_the_replica_believes_now() -> None:
    work, slower = heard(), msgspec.structs.replace(COST, token_ns=3 * COST.token_ns)
    asked = [picture("req-1"), picture("req-2", steps=9), picture("req-3", n=3), picture("req-4", height=128)]
    assert [own(work, one) for one in asked * 2] == [left_ns(COST, one) for one in asked * 2]
    assert len({own(work, one) for one in asked}) == 4
    work.hear(report("rep-a", 2, denoise_cost=slower), 2000)
    assert [own(work, one) for one in asked] == [left_ns(slower, one) for one in asked]


# SPEC F2, F8
def test_a_shape_that_has_not_run_there_takes_its_preparation_too() -> None:
    work, cost = heard(), msgspec.structs.replace(COST, first_ns=777.0)
    asked = picture("req-1")
    sides = asked.height, asked.width, 1
    prepared_ns = 777 + preparation_ns(cost, asked.shape, 1)
    for number, (warm, more_ns) in enumerate(((None, 0), ((), prepared_ns), ((WarmShape(*sides, 1),), 0)), start=2):
        work.hear(report("rep-a", number, denoise_cost=cost, warm=warm), 2000)
        assert own(work, asked) == left_ns(cost, asked) + more_ns


# SPEC F2, F8: else the second of two is believed to wait for the same preparation twice, and refused for it.
def test_a_shape_is_prepared_once_for_all_that_wait_for_it() -> None:
    cost, asked, other = replace(COST, first_ns=777.0), picture("req-1", size=128), picture("req-3", size=96)
    work, prepared_ns = PendingWork(), 777 + preparation_ns(COST, asked.shape, 1)
    work.hear(report("rep-a", 1, denoise_cost=cost, warm=()), 1000)
    alone_ns = left_ns(COST, asked)
    work.sent(asked, 1)
    work.sent(replace(asked, id=RequestId("req-2")), 2)
    assert work.told_ns == prepared_ns + 2 * alone_ns
    assert own(work, asked) == alone_ns
    assert own(work, other) > left_ns(COST, other) + 777
    for number, (waiting, more_ns) in enumerate(((2, 0), (0, prepared_ns)), start=2):
        told = (ShapePreparation(128, 128, 1, 1, "running", 0, 2, waiting),)
        work.hear(report("rep-a", number, denoise_cost=cost, warm=(), preparing=told, submits_seen=2), 2000)
        assert own(work, asked) == alone_ns + more_ns  # what an operator asked for is no work that was told
    assert work.check()


def test_what_it_remembers_is_bounded() -> None:
    work = heard()
    for steps in range(1, 3 * KINDS_MAX):
        asked = picture("req-1", steps=steps)
        assert own(work, asked) == left_ns(COST, asked)
    assert len(work._taken) <= KINDS_MAX


def test_a_dispatch_that_was_sent_twice_is_counted_once() -> None:
    work = heard()
    work.sent(picture("req-1"), 1)
    work.sent(picture("req-1"), 2)
    assert (work.ahead_ns(1000), work.check()) == (ONE, True)


def takes(told: ReplicaReport, request: Request) -> bool:
    return heard_of(told).takes(request, kind_of(request))


def heard_of(told: ReplicaReport) -> Replica:
    replica = Replica(told.replica, 1, 0)
    replica.hear(told, 0)
    return replica


def test_a_pool_takes_requests_of_its_sizes_only() -> None:  # SPEC F5
    short = report("rep-a", 1, pixels=(0, 64 * 64))
    long = report("rep-b", 1, pixels=(64 * 64 + 1, None))
    still, video = picture("req-2"), picture("req-1", frames=9)
    assert [takes(short, still), takes(short, video)] == [True, False]
    assert [takes(long, still), takes(long, video)] == [False, True]
    assert takes(long, llm("req-3"))


def test_a_replica_takes_what_fits_in_its_memory() -> None:  # SPEC F4
    memory = DenoiseMemory(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, room=2 * 64 * 64)
    told = report("rep-a", 1, denoise_cost=COST, denoise_memory=memory)
    assert [takes(told, picture("req-1", n=n)) for n in (1, 2, 3)] == [True, True, False]
    assert takes(report("rep-a", 1, denoise_cost=COST), picture("req-1", n=9))  # it does not tell


class Counted:
    """`fits`, and how often it was computed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *given: Any) -> bool:  # Any: passed on
        self.calls += 1
        return fits(*given)


# SPEC F4: a forecast asks every replica of the fleet, and to compute it took a third of the time with 420 of them
def test_what_fits_is_computed_once_per_kind_until_the_memory_or_the_sizes_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted()
    monkeypatch.setattr(work_module, "fits", counted)
    memory = DenoiseMemory(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, begin_pixel=7.0, latent_token=8.0, held_step=9.0, room=120_000)
    edit = {"content": Content(pictures=(b"x",))}
    masked = {"content": Content(pictures=(b"x",), mask=b"m")}
    changes: list[dict[str, Any]] = [
        {},
        {"n": 2},
        {"steps": 40},
        {"width": 128},
        {"frames": 5},
        edit,
        masked,
    ]  # Any: fields
    requests = [picture(f"req-{n}", **change) for n, change in enumerate(changes)]
    told = report("rep-a", 1, denoise_cost=COST, denoise_memory=memory)
    replica = heard_of(told)

    def asked() -> list[bool]:
        return [replica.takes(request, kind_of(request)) for request in requests]

    first = asked()
    assert first == [fits(memory, COST, request) for request in requests]
    assert len(set(first)) == 2  # some fit, some do not
    assert [asked() for _ in range(20)] == [first] * 20
    assert counted.calls == len(requests)
    for number in range(2, 12):  # it goes on learning how long its work takes
        replica.hear(
            replace(told, number=number, denoise_cost=replace(COST, token_ns=float(number), error=0.1)), number
        )
        assert asked() == first
    assert counted.calls == len(requests)
    replica.hear(replace(told, number=12, denoise_memory=replace(memory, room=1)), 12)
    assert not any(asked())
    replica.hear(replace(told, number=13, denoise_cost=replace(COST, patch=64)), 13)
    assert asked() == [fits(memory, replace(COST, patch=64), request) for request in requests]
    assert counted.calls == 3 * len(requests)
    for number in range(2 * KINDS_MAX):
        replica.takes(picture("req-1", steps=number + 1), f"{number}")
    assert len(replica.work._fits) <= KINDS_MAX
