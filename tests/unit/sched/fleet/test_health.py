from headway.core.ids import NodeId
from headway.sched.fleet.health import Health, HealthParams

A, B = NodeId("rep-a"), NodeId("rep-b")


def health(up: int = 2, down: int = 3) -> Health:
    made = Health(HealthParams(up, down))
    for node in (A, B):
        made.joined(node)
    return made


def probe(made: Health, results: str) -> list[bool]:
    """`+` good, `-` bad; who is up after each."""
    states = []
    for result in results:
        made.probed(A, result == "+")
        states.append(made.is_up(A))
    return states


def test_bad_probes_in_a_row_take_it_out_and_good_ones_bring_it_back() -> None:  # SPEC A11
    assert probe(health(), "---+-++-") == [True, True, False, False, False, False, True, True]


def test_a_flapping_check_never_takes_it_out() -> None:  # SPEC A11
    assert set(probe(health(), "--+" * 20)) == {True}


def test_a_flapping_check_never_brings_it_back() -> None:
    assert probe(health(), "---" + "+-" * 20)[2:] == [False] * 41


def test_only_the_change_is_told() -> None:
    made = health(up=1, down=2)
    assert [made.probed(A, ok) for ok in (False, False, False, True, True)] == [False, True, False, True, False]


def test_a_restarted_instance_begins_up() -> None:
    made = health(down=1)
    made.probed(A, False)
    made.left(A)
    made.joined(A)
    assert made.is_up(A)


def test_a_probe_of_another_replica_changes_nothing_here() -> None:
    made = health(down=1)
    made.probed(B, False)
    assert (made.is_up(A), made.is_up(B)) == (True, False)


def test_a_late_probe_of_a_replica_that_left_is_ignored() -> None:
    made = health(down=1)
    made.left(A)
    assert not made.probed(A, False)
    assert made.is_up(A)
