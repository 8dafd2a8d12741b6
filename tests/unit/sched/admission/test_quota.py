from hypothesis import given
from hypothesis import strategies as st

from headway.core.ids import RequestId, TenantId
from headway.core.reports import RateLimit
from headway.core.units import NS_PER_S
from headway.sched.admission.quota import Bucket, GpuSeconds, Quota, Quotas

T = TenantId("t")


def made(**limits: object) -> Quotas:
    return Quotas({"t": Quota(**limits)})  # type: ignore[arg-type]  # fields of Quota


def take(quotas: Quotas, name: str, tokens: int = 0, device_us: int = 0, at_s: float = 0.0) -> str | None:
    error = quotas.take(RequestId(name), T, tokens, device_us, round(at_s * NS_PER_S))
    return None if error is None else str(error.code)


# SPEC A8
def test_requests_per_second_with_a_burst() -> None:
    quotas = made(requests_per_s=2.0, requests_burst=3)
    assert [take(quotas, f"req-{i}") for i in range(4)] == [None, None, None, "rate_limited"]
    assert take(quotas, "req-5", at_s=0.49) == "rate_limited"
    assert take(quotas, "req-6", at_s=0.5) is None


def test_a_rate_is_kept_to_a_millionth() -> None:
    quotas = made(requests_per_s=0.0015)
    assert take(quotas, "a") is None
    assert quotas.limits(T, 0).requests == RateLimit(1, 0, NS_PER_S * 2000 // 3)


def test_a_refusal_says_when_to_come_back() -> None:
    quotas = made(requests_per_s=2.0)
    take(quotas, "req-1")
    error = quotas.take(RequestId("req-2"), T, 0, 0, 0)
    assert error is not None
    assert (error.status, error.retry_after_ms, error.waiting_helps) == (429, 500, True)
    assert quotas.take(RequestId("req-3"), T, 0, 0, 500_000_000) is None


# SPEC A8
def test_tokens_that_were_not_used_come_back() -> None:
    quotas = made(tokens_per_min=100)
    assert take(quotas, "req-1", tokens=80) is None
    assert take(quotas, "req-2", tokens=30) == "rate_limited"
    quotas.settle(RequestId("req-1"), 10, 0, 0)
    assert take(quotas, "req-2", tokens=30) is None
    limits = quotas.limits(T, 0)
    assert limits.tokens is not None
    assert (limits.tokens.limit, limits.tokens.remaining) == (100, 60)


# SPEC A8
def test_tokens_beyond_the_estimate_count_however_long_the_answer_ran() -> None:
    quotas = made(tokens_per_min=600)
    assert take(quotas, "req-1", tokens=10) is None
    at_ns = 300 * NS_PER_S  # by then the bucket has long been full again
    quotas.settle(RequestId("req-1"), 310, 0, at_ns)
    limits = quotas.limits(T, at_ns)
    assert limits.tokens is not None
    assert limits.tokens.remaining == 300


def test_more_tokens_than_a_minute_has_are_never_there() -> None:
    error = made(tokens_per_min=100).take(RequestId("req-1"), T, 101, 0, 0)
    assert error is not None
    assert not error.waiting_helps
    assert "lower max_tokens" in error.message


# SPEC A8  (sglang#31907, #32491, vllm-router#280: the limit refilled with time, or was freed at the first byte)
def test_the_concurrent_limit_is_a_lease_that_time_does_not_refill() -> None:
    quotas = made(concurrent=1)
    assert take(quotas, "req-1") is None
    assert take(quotas, "req-2", at_s=3600) == "rate_limited"
    quotas.settle(RequestId("req-1"), 0, 0, 0)
    quotas.settle(RequestId("req-1"), 0, 0, 0)  # once
    assert take(quotas, "req-2", at_s=3600) is None
    assert quotas.open(T) == 1


# SPEC A8
def test_device_seconds_are_reserved_settled_and_refunded() -> None:
    quotas = made(gpu_seconds=GpuSeconds(10.0, period_s=100.0))
    assert take(quotas, "req-1", device_us=6_000_000) is None
    assert take(quotas, "req-2", device_us=6_000_000) == "quota_exceeded"
    quotas.settle(RequestId("req-1"), 0, 0, 0)  # it failed: nothing was used
    assert take(quotas, "req-2", device_us=6_000_000) is None
    quotas.settle(RequestId("req-2"), 0, 9_500_000, 0)  # more than reserved: an overdraft of the period
    assert take(quotas, "req-3", device_us=1_000_000, at_s=50) == "quota_exceeded"
    assert take(quotas, "req-3", device_us=1_000_000, at_s=100) is None


def test_a_spent_period_refuses_also_who_is_not_yet_known_to_need_anything() -> None:
    quotas = made(gpu_seconds=GpuSeconds(1.0, period_s=100.0))
    assert take(quotas, "req-1") is None
    quotas.settle(RequestId("req-1"), 0, 2_000_000, 0)
    assert take(quotas, "req-2") == "quota_exceeded"


def test_what_is_refused_takes_nothing() -> None:
    quotas = made(requests_per_s=1.0, requests_burst=5, tokens_per_min=10)
    assert take(quotas, "req-1", tokens=11) == "rate_limited"
    limits = quotas.limits(T, 0)
    assert limits.requests is not None
    assert (limits.requests.remaining, quotas.open(T)) == (5, 0)


def test_tenants_do_not_share_and_without_quota_nothing_is_limited() -> None:
    quotas = Quotas({"t": Quota(concurrent=1)}, default=None)
    assert take(quotas, "req-1") is None
    for number in range(9):
        assert quotas.take(RequestId(f"req-o{number}"), TenantId("other"), 10**9, 10**9, 0) is None
    assert quotas.limits(TenantId("other"), 0).requests is None


def test_the_default_holds_for_tenants_without_their_own() -> None:
    quotas = Quotas({}, default=Quota(concurrent=1))
    assert quotas.take(RequestId("req-1"), TenantId("any"), 0, 0, 0) is None
    assert quotas.take(RequestId("req-2"), TenantId("any"), 0, 0, 0) is not None
    assert quotas.take(RequestId("req-3"), TenantId("another"), 0, 0, 0) is None


@given(st.lists(st.tuples(st.integers(0, 2_000_000_000), st.integers(1, 20)), max_size=40))
def test_no_window_gives_more_than_burst_and_rate(steps: list[tuple[int, int]]) -> None:
    bucket, at_ns, taken = Bucket(10, NS_PER_S, 20), 0, []
    for gap_ns, amount in steps:
        at_ns += gap_ns
        if not bucket.wait_ns(amount, at_ns):
            bucket.take(amount, at_ns)
            taken.append((at_ns, amount))
        assert 0 <= bucket.left(at_ns) <= 20
    for first, (begin_ns, _) in enumerate(taken):
        for last in range(first, len(taken)):
            total = sum(amount for _, amount in taken[first : last + 1])
            assert total <= 20 + (taken[last][0] - begin_ns) * 10 / NS_PER_S + 1e-6
