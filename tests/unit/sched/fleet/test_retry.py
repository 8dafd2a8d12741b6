import pytest

from headway.core.draw import draw_below
from headway.core.units import NS_PER_S
from headway.sched.fleet.retry import RetryBudget, RetryParams


def spent(budget: RetryBudget, at_ns: int = 0) -> list[float | None]:
    """Take until it is refused; the waits in seconds."""
    waits: list[float | None] = []
    while len(waits) < 1000:
        wait_ns = budget.take(at_ns)
        waits.append(None if wait_ns is None else wait_ns / NS_PER_S)
        if wait_ns is None:
            break
    return waits


def test_what_was_saved_is_free_then_each_waits_longer_then_it_is_refused() -> None:  # SPEC A11
    budget = RetryBudget(RetryParams(share=0, per_s=2, saved_max=3, wait_s=1.5))
    assert spent(budget) == [0, 0, 0, 0.5, 1.0, 1.5, None]


def test_time_pays_the_debt() -> None:
    budget = RetryBudget(RetryParams(share=0, per_s=2, saved_max=1, wait_s=0))
    assert spent(budget) == [0, None]
    assert spent(budget, NS_PER_S // 2 - 1) == [None]
    assert spent(budget, NS_PER_S // 2) == [0, None]


def test_sent_requests_allow_their_share() -> None:  # SPEC A11
    budget = RetryBudget(RetryParams(share=0.25, per_s=0.001, saved_max=10, wait_s=0))
    assert len(spent(budget)) == 11
    for _ in range(8):
        budget.sent()
    assert spent(budget) == [0, 0, None]


def test_no_more_is_saved_than_the_bound() -> None:
    budget = RetryBudget(RetryParams(share=1, per_s=100, saved_max=4, wait_s=0))
    for _ in range(100):
        budget.sent()
    assert len(spent(budget, 3600 * NS_PER_S)) == 5


@pytest.mark.parametrize("seed", range(20))
def test_retries_never_exceed_share_and_floor(seed: int) -> None:  # SPEC A11: no retry storm
    params = RetryParams(share=0.2, per_s=5, saved_max=10, wait_s=2)
    budget, sent, taken, last_due_ns, at_ns = RetryBudget(params), 0, 0, 0, 0
    for step in range(3000):
        at_ns += draw_below(seed, "gap", 0, step, NS_PER_S // 50)
        if draw_below(seed, "kind", 0, step, 3):
            wait_ns = budget.take(at_ns)
            if wait_ns is not None:
                taken, last_due_ns = taken + 1, max(last_due_ns, at_ns + wait_ns)
        else:
            budget.sent()
            sent += 1
        assert taken <= 0.2 * sent + 5 * max(at_ns, last_due_ns) / NS_PER_S + 10 + 1e-6
    assert taken > 100
