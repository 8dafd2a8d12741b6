from tests.unit.sched.router.views import llm

from headway.core.decisions import Candidate
from headway.core.request import Slo
from headway.core.units import ns_from_ms
from headway.sched.admission.policies.bounded import Bounded
from headway.sched.admission.protocol import Load

POLICY = Bounded(Bounded.Params(queue_max=3))
BEST = Candidate("rep-a", seconds=0.2, confidence=0.9)


def test_admits_with_room_and_queues_without() -> None:  # SPEC A7
    assert POLICY.decide(llm("req-1"), [BEST], Load(0, True, 0.0, 0.0), 0).kind == "admit"
    assert POLICY.decide(llm("req-1"), [BEST], Load(0, False, 0.0, 0.0), 0).kind == "queue"
    assert POLICY.decide(llm("req-1"), [], Load(0, False, 0.0, 0.0), 0).kind == "queue"


def test_nobody_overtakes_the_queue() -> None:
    assert POLICY.decide(llm("req-1"), [BEST], Load(1, True, 0.0, 0.0), 0).kind == "queue"


def test_a_full_queue_is_a_429_that_says_when_to_retry() -> None:  # SPEC A7
    verdict = POLICY.decide(llm("req-1"), [BEST], Load(3, False, 0.0, 4.0), 0)
    assert verdict.kind == "reject"
    assert verdict.error is not None
    assert (verdict.error.status, verdict.error.code, verdict.error.retry_after_ms) == (429, "queue_full", 4200)


def test_a_hopeless_deadline_is_refused_with_the_forecast() -> None:  # SPEC A7
    late_first = llm("req-1", slo=Slo(ttft_deadline_ns=ns_from_ms(199)))
    late_last = llm("req-2", slo=Slo(e2e_deadline_ns=ns_from_ms(300)))
    for request in (late_first, late_last):
        verdict = POLICY.decide(request, [BEST], Load(0, True, 0.2, 0.0), 0)
        assert verdict.error is not None
        assert (verdict.error.status, verdict.error.code) == (429, "slo_unattainable")
        assert verdict.error.retry_after_ms == 1000
        assert not verdict.error.waiting_helps


def test_an_unsure_forecast_refuses_nobody() -> None:
    request = llm("req-1", slo=Slo(ttft_deadline_ns=1))
    unsure = Candidate("rep-a", seconds=9.0, confidence=0.4)
    assert POLICY.decide(request, [unsure], Load(0, True, 0.0, 0.0), 0).kind == "admit"
