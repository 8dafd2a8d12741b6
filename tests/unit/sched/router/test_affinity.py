from headway.core.ids import NodeId
from headway.sched.router.affinity import Binding, Sessions

A, B = NodeId("rep-a"), NodeId("rep-b")


def test_a_binding_keeps_the_time_of_its_move_and_not_of_its_use() -> None:  # SPEC A4
    sessions = Sessions(10)
    sessions.bind("t", "s", A, 1)
    sessions.bind("t", "s", A, 5)
    assert sessions.of("t", "s") == Binding(A, 1)
    sessions.bind("t", "s", B, 9)
    assert sessions.of("t", "s") == Binding(B, 9)


def test_the_table_is_bounded_and_the_longest_unseen_goes() -> None:
    sessions = Sessions(2)
    for name in ("s1", "s2", "s1", "s3"):
        sessions.bind("t", name, A, 0)
    assert len(sessions) == 2
    assert (sessions.of("t", "s2"), sessions.of("t", "s1")) == (None, Binding(A, 0))


def test_sessions_of_a_lost_replica_are_free() -> None:
    sessions = Sessions(10)
    sessions.bind("t", "s1", A, 0)
    sessions.bind("t", "s2", B, 0)
    sessions.left(A)
    assert (sessions.of("t", "s1"), len(sessions)) == (None, 1)


def test_a_request_without_a_session_is_bound_nowhere() -> None:
    assert Sessions(10).of("t", None) is None
