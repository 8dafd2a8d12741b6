"""Scraped load carried on by own counts (SPEC A5)."""

import pytest

from headway.adapters.upstream.load import BytesPerToken, Figures, UpstreamLoad
from headway.adapters.upstream.scrape import Scraped
from headway.core.ids import RequestId


def request(number: int) -> RequestId:
    return RequestId(f"req-{number}")


def test_without_a_scrape_only_own_requests_count() -> None:
    load = UpstreamLoad()
    load.submitted(request(1), 1)
    assert load.figures(5) == Figures(1, 0, False, 5)


def test_what_was_sent_after_the_scrape_is_added_and_what_ended_is_taken_off() -> None:
    # llm-d-router#2066: 1 ms dispatches against slow scrapes overshoot without local credit
    load = UpstreamLoad()
    load.submitted(request(1), 1)
    load.submitted(request(2), 2)
    load.heard(Scraped(running=6, waiting=0), covered=2, at_ns=100)
    load.submitted(request(3), 3)
    load.ended(request(1), is_answered=True)
    assert load.figures(200) == Figures(6, 0, True, 100)
    load.ended(request(3), is_answered=True)
    assert load.figures(200) == Figures(5, 0, True, 100)


def test_more_than_ran_when_some_waited_will_wait() -> None:
    load = UpstreamLoad()
    load.heard(Scraped(running=4, waiting=2), covered=0, at_ns=1)
    load.submitted(request(1), 1)
    assert load.figures(2) == Figures(4, 3, True, 1)


def test_a_batch_that_grew_has_no_known_limit() -> None:
    load = UpstreamLoad()
    load.heard(Scraped(running=4, waiting=2), covered=0, at_ns=1)
    load.heard(Scraped(running=8, waiting=0), covered=0, at_ns=2)
    load.submitted(request(1), 1)
    assert load.figures(3) == Figures(9, 0, True, 2)


def test_metrics_that_say_less_than_we_have_there_lie() -> None:
    load = UpstreamLoad()
    for number in range(1, 6):
        load.submitted(request(number), number)
    load.heard(Scraped(running=0, waiting=0), covered=5, at_ns=1)
    assert load.figures(2).running == 5


def test_counters_that_stand_still_while_answers_come_are_not_believed() -> None:
    load, stuck = UpstreamLoad(), Scraped(running=0, waiting=900, prompt_tokens=10)
    assert load.heard(stuck, 0, at_ns=0)
    for number in range(1, 4):
        load.submitted(request(number), number)
        load.ended(request(number), is_answered=True)
        believed = load.heard(stuck, number, at_ns=number)
    assert not believed
    assert load.figures(9) == Figures(0, 0, False, 9)  # neither saturated nor idle: own counts
    assert load.heard(Scraped(running=1, waiting=0, prompt_tokens=11), 3, at_ns=10)
    assert load.figures(11) == Figures(1, 0, True, 10)


def test_an_idle_upstream_is_not_frozen() -> None:
    load, idle = UpstreamLoad(), Scraped(running=0, waiting=0, prompt_tokens=10)
    assert all(load.heard(idle, 0, at_ns=at) for at in range(100))


def test_gauges_without_any_counter_cannot_be_judged() -> None:
    load, still = UpstreamLoad(), Scraped(running=2, waiting=0)
    for number in range(1, 9):
        load.submitted(request(number), number)
        load.ended(request(number), is_answered=True)
        assert load.heard(still, number, at_ns=number)


def test_failing_scrapes_leave_own_counts() -> None:
    load = UpstreamLoad()
    load.heard(Scraped(running=50, waiting=50), 0, at_ns=1)
    load.submitted(request(1), 1)
    load.lost()
    assert load.figures(7) == Figures(1, 0, False, 7)


def test_bytes_per_token_approach_what_answers_say() -> None:
    learned = BytesPerToken(4.0)
    for _ in range(100):
        learned.observe(1000, learned.value, round(1000 * learned.value / 3.2))
    assert learned.value == pytest.approx(3.2, rel=0.01)  # prompt tokens are whole


def test_an_image_in_the_prompt_teaches_nothing() -> None:
    learned = BytesPerToken(4.0)
    learned.observe(1_000_000, 4.0, 300)
    learned.observe(0, 4.0, 300)
    assert learned.value == 4.0
