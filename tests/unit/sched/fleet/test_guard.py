import pytest

from headway.core.decisions import Decision
from headway.core.effects import Effect, Record, WakeAt
from headway.core.ids import NodeId, RequestId
from headway.core.units import NS_PER_S
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.guard import Guard
from headway.sched.fleet.health import HealthParams

A, B = NodeId("rep-a"), NodeId("rep-b")


class Doorway:
    """A guard over two replicas, and what it said."""

    def __init__(self) -> None:
        self.out: list[Effect] = []
        self.guard = Guard(HealthParams(up_after=2, down_after=1), BreakerParams(faults_min=1, open_s=1), self.out)
        self.at_ns = 0
        for node in (A, B):
            self.guard.joined(node)

    def fail(self, node: NodeId) -> None:
        self.guard.sent(node, RequestId("req-0"), self.at_ns)
        self.guard.ended(node, RequestId("req-0"), "fault", "500", self.at_ns)

    def decisions(self) -> list[tuple[str, str]]:
        said = [effect.entry for effect in self.out if isinstance(effect, Record)]
        return [(entry.kind, entry.chosen) for entry in said if isinstance(entry, Decision)]

    def resort(self) -> NodeId | None:
        return self.guard.last_resort([A, B], self.at_ns)


@pytest.fixture
def door() -> Doorway:
    return Doorway()


def test_an_opening_is_recorded_with_its_counts_and_reason(door: Doorway) -> None:  # SPEC L-3, L-5
    door.fail(A)
    (entry,) = [effect.entry for effect in door.out if isinstance(effect, Record)]
    assert isinstance(entry, Decision)
    assert (entry.level, entry.kind, entry.chosen, entry.reason) == ("pool", "breaker", "open", "rep-a: 500")
    assert [(shown.name, shown.score) for shown in entry.alternatives] == [("faults", 1), ("successes", 0)]


def test_an_opening_wakes_the_front_when_the_rest_is_over(door: Doorway) -> None:
    door.fail(A)
    assert [effect.at_ns for effect in door.out if isinstance(effect, WakeAt)] == [NS_PER_S]


def test_it_is_quiet_while_everybody_is_usable(door: Doorway) -> None:
    quiet = [door.guard.is_quiet]
    door.fail(A)
    quiet.append(door.guard.is_quiet)
    door.guard.sent(A, RequestId("req-1"), NS_PER_S)
    door.guard.answered(A, RequestId("req-1"), NS_PER_S)
    quiet.append(door.guard.is_quiet)
    door.guard.probed(B, False, "no answer", 0)
    quiet.append(door.guard.is_quiet)
    door.guard.left(B)
    quiet.append(door.guard.is_quiet)
    assert quiet == [True, False, True, False, True]


def test_health_and_breaker_must_both_agree(door: Doorway) -> None:
    door.guard.probed(A, False, "no answer", 0)
    door.fail(B)
    assert not door.guard.is_usable(A, 0)
    assert not door.guard.is_usable(B, 0)
    assert door.guard.is_usable(B, NS_PER_S)


def test_of_all_open_breakers_the_one_that_rested_longest_is_tried(door: Doorway) -> None:  # dynamo#10564
    door.fail(B)
    door.at_ns = NS_PER_S // 2
    door.fail(A)
    assert door.resort() is None  # a rest is not skipped: the queue waits
    door.at_ns = 3 * NS_PER_S // 2
    assert door.resort() == B


def test_a_healthy_replica_is_tried_before_one_whose_checks_fail(door: Doorway) -> None:
    door.guard.probed(A, False, "no answer", 0)
    door.fail(B)
    door.at_ns = NS_PER_S
    assert door.resort() == B


def test_bad_checks_everywhere_still_let_one_request_through(door: Doorway) -> None:  # dynamo#10564
    for node in (A, B):
        door.guard.probed(node, False, "404", 0)
    assert door.resort() == A
    door.guard.sent(A, RequestId("req-1"), 0)
    assert door.resort() == B
    door.guard.sent(B, RequestId("req-2"), 0)
    assert door.resort() is None


def test_answers_of_a_replica_outweigh_its_lying_check(door: Doorway) -> None:
    door.guard.probed(A, False, "404", 0)
    for number in (1, 2):
        door.guard.sent(A, RequestId(f"req-{number}"), 0)
        door.guard.answered(A, RequestId(f"req-{number}"), 0)
    assert door.guard.is_usable(A, 0)
    assert ("health", "up") in door.decisions()


def test_what_was_sent_before_the_checks_failed_says_nothing_about_them(door: Doorway) -> None:
    """A replica that is about to be taken away still finishes what it runs."""
    door.guard.sent(A, RequestId("req-1"), 0)
    door.guard.probed(A, False, "503", 0)
    for number in range(5):
        door.guard.ended(A, RequestId(f"req-{number}"), "success", "", 0)
    assert not door.guard.is_usable(A, 0)


def test_a_trial_is_over_with_its_first_token(door: Doorway) -> None:
    door.fail(A)
    door.guard.sent(A, RequestId("req-1"), NS_PER_S)
    assert not door.guard.is_usable(A, NS_PER_S)
    door.guard.answered(A, RequestId("req-1"), NS_PER_S)
    assert door.guard.is_usable(A, NS_PER_S)
    assert door.decisions() == [("breaker", "open"), ("breaker", "half_open"), ("breaker", "closed")]


def test_a_first_token_is_no_second_success(door: Doorway) -> None:
    door.guard.sent(A, RequestId("req-1"), 0)
    door.guard.answered(A, RequestId("req-1"), 0)
    door.guard.ended(A, RequestId("req-1"), "success", "", 0)
    assert door.guard.breakers.counts(A) == (0, 1)
