import pytest

from headway.core.units import NS_PER_MS, NS_PER_S
from headway.sched.router.backlog import Backlog


def heard(tokens: int = 1000, rate: float = 500.0, count: int = 20) -> tuple[Backlog, int]:
    """A backlog that hears the same every 100 ms; and when it last did."""
    backlog, at_ns = Backlog(), 0
    for place in range(count):
        at_ns = place * 100 * NS_PER_MS
        backlog.hear(tokens, 0.0, rate, at_ns)
    return backlog, at_ns


def test_it_drains_at_the_rate_and_what_came_later_drains_later() -> None:  # SPEC A5
    backlog = Backlog()
    backlog.hear(100, 0.0, 1000.0, 0)
    assert backlog.look(50 * NS_PER_MS, 0)[0] == pytest.approx(50)
    backlog.add(100, 500 * NS_PER_MS)  # long empty by then
    assert backlog.look(550 * NS_PER_MS, 0)[0] == pytest.approx(50)


def test_a_report_on_time_is_taken_by_its_word() -> None:  # SPEC A5
    backlog, at_ns = heard()
    assert backlog.look(at_ns + 200 * NS_PER_MS, 99_999)[0] == pytest.approx(900)


def test_an_overdue_report_is_neither_full_nor_idle() -> None:  # SPEC A5
    # section 5.7 of the routers' notes; SMG's and llm-d's routers take stale for one or the other
    backlog, at_ns = heard(1000)
    assert 800 < backlog.look(at_ns + 60 * NS_PER_S, 0)[0] < 1000  # drained long ago, if nothing had come since
    busy, at_ns = heard(100)
    busy.hear(90_000, 0.0, 0.0, at_ns + 100 * NS_PER_MS)  # once, and never heard of again
    assert busy.look(at_ns + 60 * NS_PER_S, 0)[0] < 15_000


def test_prompts_without_a_first_token_have_not_drained() -> None:  # SPEC A5
    # a frozen replica: SIGSTOP, or metrics that stand still
    backlog, at_ns = heard(500)
    assert backlog.look(at_ns + 60 * NS_PER_S, 8000)[0] > 7000


def test_doubt_grows_with_age() -> None:  # SPEC A5
    backlog, at_ns = heard()
    doubts = [backlog.look(at_ns + age * NS_PER_MS, 0)[1] for age in (0, 100, 300, 2000)]
    assert doubts[0] == 0.0
    assert doubts == sorted(doubts)
    assert doubts[3] > 300


def test_own_dispatches_do_not_reset_the_doubt() -> None:
    backlog, at_ns = heard()
    before = backlog.look(at_ns + 300 * NS_PER_MS, 0)[1]
    backlog.add(1.0, at_ns + 300 * NS_PER_MS)
    assert backlog.look(at_ns + 300 * NS_PER_MS, 0)[1] == before > 0


def test_a_replica_that_speaks_rarely_may_be_silent_longer() -> None:  # SPEC A5
    often, _ = heard()
    rarely = Backlog()
    for place in range(10):
        rarely.hear(1000, 0.0, 500.0, place * 2 * NS_PER_S)
    assert rarely.patience_ns > often.patience_ns
    assert rarely.look(20 * NS_PER_S, 0)[0] == 0.0  # two seconds are its way


def test_silence_of_an_idle_replica_is_no_age() -> None:
    backlog, at_ns = heard(0)
    later = at_ns + 600 * NS_PER_S
    backlog.wake(later)
    backlog.add(300, later)
    assert backlog.look(later, 300) == (300.0, 0.0)
