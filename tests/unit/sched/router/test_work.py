"""The work of diffusion replicas as a front knows it."""

from tests.unit.sched.diffusion.pictures import COST, picture
from tests.unit.sched.router.views import View, llm, report

from headway.core.ids import NodeId
from headway.cost.diffusion import left_ns
from headway.sched.router.protocol import Scored
from headway.sched.router.work import PendingWork, denoise_candidate, takes

ONE = left_ns(COST, picture("req-0"))


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
    assert [heard().own_ns(picture("req-1")), heard().own_ns(llm("req-2"))] == [ONE, 0]
    assert PendingWork().own_ns(picture("req-1")) == 0


def test_a_pool_takes_requests_of_its_sizes_only() -> None:  # SPEC F5
    short = report("rep-a", 1, pixels=(0, 64 * 64))
    long = report("rep-b", 1, pixels=(64 * 64 + 1, None))
    video = picture("req-1", frames=9)
    assert [takes(short, picture("req-2")), takes(short, video)] == [True, False]
    assert [takes(long, picture("req-2")), takes(long, video)] == [False, True]
    assert takes(short, llm("req-3"))
