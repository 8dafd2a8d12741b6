"""Routing by seconds of work."""

from tests.unit.sched.diffusion.pictures import COST, picture
from tests.unit.sched.router.views import View, llm

from headway.core.ids import NodeId
from headway.core.units import NS_PER_S
from headway.sched.router.policies.least_work import LeastWork
from headway.sched.router.protocol import ReplicaView

A, B, C = NodeId("rep-a"), NodeId("rep-b"), NodeId("rep-c")


def best(*views: ReplicaView) -> list[str]:
    asked = picture("req-1", steps=1000, size=256)
    return [item.replica for item in LeastWork(LeastWork.Params()).rank(asked, views, 0)]


def test_a_picture_goes_where_the_least_work_is_however_many_requests_wait() -> None:  # SPEC F5, A2
    many_short = View(A, requests=9, work_ns=NS_PER_S, denoise_cost=COST)
    one_video = View(B, requests=1, work_ns=60 * NS_PER_S, denoise_cost=COST)
    assert best(many_short, one_video) == [A, B]


def test_a_faster_device_may_be_worth_waiting_for() -> None:
    slow = View(A, own_work_ns=30 * NS_PER_S, denoise_cost=COST)
    assert best(slow, View(B, work_ns=20 * NS_PER_S, own_work_ns=3 * NS_PER_S, denoise_cost=COST)) == [B, A]
    assert best(slow, View(B, work_ns=30 * NS_PER_S, own_work_ns=3 * NS_PER_S, denoise_cost=COST)) == [A, B]


def test_who_tells_no_work_comes_last_by_requests() -> None:
    views = View(A, requests=2), View(B, requests=1), View(C, work_ns=60 * NS_PER_S, denoise_cost=COST)
    assert best(*views) == [C, B, A]


def test_text_goes_where_its_prompt_is_computed_first() -> None:
    policy = LeastWork(LeastWork.Params())
    fast = View(A, queued_tokens=3000, prefill_tokens_per_s=10_000.0)
    slow = View(B, queued_tokens=2000, prefill_tokens_per_s=1000.0)
    assert [item.replica for item in policy.rank(llm("req-1"), (slow, fast), 0)] == [A, B]
