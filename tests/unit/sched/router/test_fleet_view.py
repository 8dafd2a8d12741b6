from tests.unit.sched.router.views import llm, report

from headway.core.ids import NodeId
from headway.core.units import NS_PER_S
from headway.sched.router.fleet_view import Replica, expected_output


def replica() -> Replica:
    return Replica(NodeId("rep-a"), 1, 0)


def test_own_dispatches_count_until_a_report_has_seen_them() -> None:  # SPEC A5
    view = replica()
    view.hear(report("rep-a", 1), 0)
    for name in ("req-1", "req-2"):
        view.dispatch(llm(name, prompt=30), 0, 0)
    assert (view.requests, view.queued_tokens) == (2, 60)
    view.hear(report("rep-a", 2, submits_seen=1, running=1), 1)
    assert (view.requests, view.queued_tokens) == (2, 30)
    view.hear(report("rep-a", 3, submits_seen=2, running=2), 2)
    assert (view.requests, view.queued_tokens) == (2, 0)
    assert view.check()


def test_queue_drains_at_the_learned_rate_since_the_report() -> None:  # SPEC A5
    view = replica()
    view.hear(report("rep-a", 1, waiting=3, waiting_prefill_tokens=1000, prefill_tokens_per_s=500.0), 0)
    view.now_ns = NS_PER_S
    assert view.queued_tokens == 500
    assert view.queue_ns == NS_PER_S
    view.now_ns = 10 * NS_PER_S
    assert view.queued_tokens == 0


def test_an_end_counts_before_the_next_report() -> None:
    view = replica()
    view.dispatch(llm("req-1"), 0, 0)
    view.hear(report("rep-a", 1, submits_seen=1, running=1), 0)
    view.end(llm("req-1").id)
    assert view.requests == 0


def test_an_older_report_is_dropped() -> None:
    view = replica()
    view.hear(report("rep-a", 2, running=5), 0)
    view.hear(report("rep-a", 1, running=9), 1)
    assert view.requests == 5


def test_expected_output_is_the_prediction_or_what_the_client_forces() -> None:  # SPEC A3
    assert expected_output(llm("req-1", max_tokens=50)) == 1
    assert expected_output(llm("req-1", max_tokens=50, output_tokens_predicted=20)) == 20
    assert expected_output(llm("req-1", max_tokens=10, output_tokens_predicted=20)) == 10
