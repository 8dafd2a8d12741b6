import pytest
from tests.unit.sched.router.views import llm, report

from headway.core.ids import NodeId
from headway.core.reports import StepCoefficients
from headway.core.units import NS_PER_MS, NS_PER_S
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
    view.look(NS_PER_S)
    assert view.queued_tokens == 500
    assert view.queue_ns == NS_PER_S


def test_an_end_counts_before_the_next_report() -> None:
    view = replica()
    view.dispatch(llm("req-1"), 0, 0)
    view.hear(report("rep-a", 1, submits_seen=1, running=1), 0)
    view.end(llm("req-1").id, 1, 0)
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


def test_a_dispatch_between_two_reports_is_credited_at_once() -> None:  # SPEC A5
    # llm-d-router PR#2066: 1 ms between dispatches, 50 ms between scrapes
    a, b = replica(), Replica(NodeId("rep-b"), 1, 0)
    for view in (a, b):
        view.hear(report(view.id, 1, prefill_tokens_per_s=1000.0), 0)
    went = []
    for place in range(50):
        view = min((a, b), key=lambda each: (each.queued_tokens, each.id))
        view.dispatch(llm(f"req-{place}", prompt=100), 0, place * NS_PER_MS)
        went.append(view.id)
    assert went.count(NodeId("rep-a")) == 25


def test_other_fronts_are_taken_to_send_as_this_one_does() -> None:  # SPEC A5
    # smg PR#1621: each of N gateways sees 1/N of the load
    alone, shared = replica(), replica()
    for number in range(40):
        for view, running in ((alone, 1), (shared, 3)):
            name = f"req-{number}"
            view.dispatch(llm(name), 10, number)
            view.hear(report("rep-a", number + 1, submits_seen=number + 1, running=running), number)
            view.dispatch(llm("req-new", prompt=100), 0, number)
            seen = view.queued_tokens
            view.end(llm("req-new").id, 0, number)
            view.end(llm(name).id, 0, number)
            view.number = number + 1
            if view is alone:
                assert seen == 100
    assert 250 < seen <= 300


def test_the_queue_of_a_replica_that_reports_no_tokens_is_what_was_sent_and_has_not_begun() -> None:  # SPEC A5
    view = replica()
    view.hear(report("rep-a", 1, source="scrape"), 0)
    for name in ("req-1", "req-2"):
        view.dispatch(llm(name, prompt=500), 100, 0)
    view.hear(report("rep-a", 2, source="scrape", submits_seen=2, waiting=1, running=1), 1)
    assert view.queued_tokens == 800
    view.begun(llm("req-1").id, None, 2)
    assert view.queued_tokens == 400
    view.end(llm("req-2").id, 0, 3)
    assert view.queued_tokens == 0
    assert view.check()


def test_what_others_have_waiting_at_a_replica_that_reports_no_tokens_counts_as_own_prompts_do() -> None:  # SPEC A5
    view = replica()
    view.dispatch(llm("req-1", prompt=500), 0, 0)
    view.hear(report("rep-a", 1, source="scrape", submits_seen=1, waiting=4, running=0), 1)
    assert view.queued_tokens == 500 + 3 * 500


def test_rates_are_learned_from_first_tokens_and_ends_where_no_report_says_them() -> None:  # SPEC A2
    view = replica()
    for number in range(1, 5):
        name, at_ns = f"req-{number}", number * NS_PER_S
        view.hear(report("rep-a", number, source="scrape", submits_seen=number - 1), at_ns)
        view.dispatch(llm(name, prompt=1000), 0, at_ns)
        view.begun(llm(name).id, None, at_ns + NS_PER_S // 2)
        view.end(llm(name).id, 11, at_ns + NS_PER_S // 2 + 10 * 20 * NS_PER_MS)
    assert view.prefill_tokens_per_s == pytest.approx(2000.0)
    assert view.step_cost is not None
    assert view.step_cost.base_ns + view.step_cost.row_ns == pytest.approx(20e6)


def test_tokens_that_were_cached_after_all_do_not_make_a_replica_look_fast() -> None:
    view = replica()
    view.hear(report("rep-a", 1, source="scrape"), 0)
    for number in range(1, 4):
        view.dispatch(llm(f"req-{number}", prompt=1000), 0, 0)
        view.begun(llm(f"req-{number}").id, 800, NS_PER_S // 10)
    assert view.prefill_tokens_per_s == pytest.approx(2000.0)


def test_what_a_report_says_of_its_speed_counts_before_what_was_measured_from_here() -> None:
    view = replica()
    for number in range(1, 5):
        view.dispatch(llm(f"req-{number}", prompt=1000), 0, 0)
        view.begun(llm(f"req-{number}").id, None, NS_PER_S)
        view.end(llm(f"req-{number}").id, 1, NS_PER_S)
    cost = StepCoefficients(1.0, 2.0, 3.0, 4.0, 5.0)
    view.hear(report("rep-a", 1, submits_seen=4, prefill_tokens_per_s=77.0, step_cost=cost), NS_PER_S)
    assert (view.prefill_tokens_per_s, view.step_cost) == (77.0, cost)


def test_a_busy_replicas_report_ages_and_an_idle_ones_does_not() -> None:  # SPEC A5
    view = replica()
    view.hear(report("rep-a", 1), 0)
    view.look(60 * NS_PER_S)
    assert view.age_ns == 0
    view.dispatch(llm("req-1"), 0, 60 * NS_PER_S)
    assert view.age_ns == 0
    view.look(61 * NS_PER_S)
    assert view.age_ns == NS_PER_S


def test_a_scraped_report_is_as_old_as_its_scrape_however_often_it_is_told() -> None:  # SPEC A5
    view = replica()
    view.hear(report("rep-a", 1, source="scrape", at_ns=0, running=1), 0)
    for number in range(2, 9):
        view.hear(report("rep-a", number, source="scrape", at_ns=0, running=number), number * NS_PER_S)
    assert view.age_ns == 8 * NS_PER_S
    view.hear(report("rep-a", 9, source="scrape", at_ns=9 * NS_PER_S, running=1), 9 * NS_PER_S)
    assert view.age_ns == 0


def test_a_replica_that_stopped_working_is_not_taken_for_drained() -> None:  # SPEC A5
    view = replica()
    view.hear(report("rep-a", 1, prefill_tokens_per_s=1000.0), 0)
    view.dispatch(llm("req-1", prompt=3000), 0, 0)
    view.hear(report("rep-a", 2, submits_seen=1, running=1, waiting_prefill_tokens=3000, prefill_tokens_per_s=1e3), 1)
    view.look(60 * NS_PER_S)
    assert view.queued_tokens > 2500
    assert view.queued_tokens_spread > 1000


def test_an_unseen_dispatch_that_has_begun_waits_no_more() -> None:
    view = replica()
    view.dispatch(llm("req-1", prompt=300), 0, 0)
    view.begun(llm("req-1").id, None, 1)
    view.hear(report("rep-a", 1), 2)
    assert (view.requests, view.queued_tokens) == (1, 0)
    assert view.check()
