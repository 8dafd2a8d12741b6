"""Accounts and leases: conservation after every verb, idempotence by lease id. SPEC L-2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvariantError
from headway.core.ids import LeaseId
from headway.core.ledger import Account, Ledger

A, B = LeaseId("lease-a"), LeaseId("lease-b")

verbs = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "extend", "settle", "release"]),
        st.sampled_from([LeaseId(f"lease-{k}") for k in range(5)]),
        st.integers(0, 12),
    ),
    max_size=60,
)


def run(account: Account, verb: str, lease: LeaseId, amount: int) -> None:
    match verb:
        case "reserve":
            account.reserve(lease, amount)
        case "extend":
            account.extend(lease, amount)
        case "settle":
            account.settle(lease, amount)
        case _:
            account.release(lease)


# SPEC L-2
@given(steps=verbs)
def test_capacity_is_free_plus_reserved_plus_used_after_every_verb(steps: list[tuple[str, LeaseId, int]]) -> None:
    account = Account("a", "node-1", "blocks", 20)
    for verb, lease, amount in steps:
        run(account, verb, lease, amount)
        account.check()
        assert account.free is not None
        assert account.free + account.reserved + account.used == 20


@given(steps=verbs)
def test_a_level_account_returns_to_zero_when_every_lease_is_released(steps: list[tuple[str, LeaseId, int]]) -> None:
    account = Account("a", "node-1", "blocks", 20)
    for verb, lease, amount in steps:
        run(account, verb, lease, amount)
    for k in range(5):
        account.release(LeaseId(f"lease-{k}"))
    assert (account.reserved, account.used) == (0, 0)


@given(steps=verbs)
def test_repeating_reserve_and_release_changes_nothing(steps: list[tuple[str, LeaseId, int]]) -> None:
    once, twice = Account("a", "n", "blocks", 20), Account("a", "n", "blocks", 20)
    for verb, lease, amount in steps:
        run(once, verb, lease, amount)
        run(twice, verb, lease, amount)
        if verb in ("release", "settle"):
            run(twice, verb, lease, amount)
        if verb == "reserve" and lease in twice._leases:  # a failed reserve may be tried again
            run(twice, verb, lease, amount)
    assert once.view() == twice.view()


def test_reserve_beyond_the_capacity_is_refused_and_holds_nothing() -> None:
    account = Account("a", "n", "blocks", 4)
    assert not account.reserve(A, 5)
    assert account.reserve(A, 4)
    assert not account.reserve(B, 1)
    assert account.view().reserved == 4


def test_settling_above_the_reservation_is_an_overdraft_that_blocks_the_next_admission() -> None:
    account = Account("tenant/t/tokens", "front", "tokens", 100)
    account.reserve(A, 80)
    account.settle(A, 130)
    assert account.free == -30
    assert not account.can_reserve(1)


def test_a_meter_keeps_what_was_settled() -> None:
    account = Account("tenant/t/tokens", "front", "tokens", None, "meter")
    account.reserve(A, 50)
    assert account.view().reserved == 50
    account.settle(A, 7)
    account.release(A)
    account.settle(A, 7)
    assert (account.reserved, account.used) == (0, 7)


def test_a_released_meter_lease_refunds_all_of_it() -> None:
    account = Account("tenant/t/gpu_seconds", "front", "us", None, "meter")
    account.reserve(A, 50)
    account.release(A)
    assert (account.reserved, account.used) == (0, 0)


def test_a_negative_reservation_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="reserves -1"):
        Account("a", "n", "blocks", 4).reserve(A, -1)


def test_a_broken_account_is_named_with_its_numbers() -> None:
    ledger = Ledger("node-1")
    ledger.open("gateway/in_flight", "requests", 8).reserve(A, 2)
    ledger.accounts["gateway/in_flight"].reserved = 3
    with pytest.raises(InvariantError, match="gateway/in_flight: reserved 3, leases 2"):
        ledger.check()


def test_release_all_closes_one_lease_everywhere_and_views_are_by_name() -> None:
    ledger = Ledger("node-1")
    for name in ("b", "a"):
        ledger.open(name, "x", 8).reserve(A, 2)
    ledger.release_all(A)
    assert [(v.name, v.reserved) for v in ledger.views()] == [("a", 0), ("b", 0)]
