"""Who waits for a replica that starts, how long, and what is answered where none comes."""

from tests.unit.sched.desk import Desk

from headway.core.effects import End, ErrorOut
from headway.core.units import NS_PER_S
from headway.sched.dispatch import Patience
from headway.sched.nodes import FrontConfig

PATIENCE = FrontConfig(patience=Patience(replica_wait_s=2, start_wait_s=5))


def ask_without_replicas(config: FrontConfig = PATIENCE) -> Desk:
    """`req-1` waits where the only replica was lost."""
    desk = Desk(config, ("rep-a",))
    desk.lose("rep-a")
    desk.arrive("req-1")
    return desk


def look(desk: Desk, at_s: int) -> ErrorOut | None:
    desk.now_ns = at_s * NS_PER_S
    desk.fire("replica:req-1")
    ends = [effect for effect in desk.last if isinstance(effect, End)]
    return ends[0].error if ends else None


def test_while_the_only_replica_warms_up_a_request_waits_for_it() -> None:  # SPEC A11
    desk = ask_without_replicas()
    desk.starting("rep-a")
    assert look(desk, 2) is None
    assert desk.timers() == ["replica:req-1"]
    desk.join("rep-a", incarnation=2)
    ((replica, _),) = desk.submits()
    assert replica == "rep-a"


def test_what_had_begun_to_stream_waits_for_the_same_start_and_goes_on() -> None:  # SPEC A11
    desk = Desk(PATIENCE, ("rep-a",))
    desk.arrive("req-1")
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.lose("rep-a")
    desk.starting("rep-a")
    assert look(desk, 2) is None
    desk.join("rep-a", incarnation=2)
    ((_, submit),) = desk.submits()
    assert submit.emitted == (7,)


def test_a_start_that_takes_too_long_is_an_error_that_says_what_it_does() -> None:
    desk = ask_without_replicas()
    desk.starting("rep-a", doing="warm-up: 512x512")
    assert look(desk, 4) is None
    desk.starting("rep-a", doing="warm-up: 1024x1024")
    error = look(desk, 5)
    assert error is not None
    assert (error.status, error.code) == (503, "no_replica")
    assert error.message.endswith("no replica serves synthetic yet: rep-a is starting (warm-up: 1024x1024)")


def test_a_start_that_failed_is_waited_for_no_longer() -> None:
    desk = ask_without_replicas()
    desk.starting("rep-a")
    desk.lose("rep-a", incarnation=2)
    error = look(desk, 2)
    assert error is not None
    assert error.message == "request req-1: no replica serves synthetic"


def test_a_replica_of_another_model_that_starts_helps_nobody() -> None:
    desk = ask_without_replicas()
    desk.starting("rep-a", model="other")
    assert look(desk, 2) is not None


def test_late_news_of_a_start_that_is_over_changes_nothing() -> None:
    desk = Desk(PATIENCE, ("rep-a",))
    desk.starting("rep-a", incarnation=1)
    desk.lose("rep-a")
    desk.arrive("req-1")
    assert look(desk, 2) is not None


def test_an_operator_who_wants_no_waiting_gets_none() -> None:
    desk = ask_without_replicas(FrontConfig(patience=Patience(replica_wait_s=0, start_wait_s=0)))
    desk.starting("rep-a")
    assert look(desk, 0) is not None
