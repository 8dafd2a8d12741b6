import pytest

from headway.core.errors import ConfigError
from headway.core.events import Proposals
from headway.core.ids import GroupId, NodeId
from headway.sched.runtime.agreement import IDLE
from headway.sched.runtime.group import Group, GroupParams

A, B = NodeId("rep-0"), NodeId("rep-1")
PARAMS = GroupParams(GroupId("group-0"), (A, B))


def proposals(step: int) -> Proposals:
    return Proposals(0, "t", PARAMS.group, step, {A: IDLE, B: IDLE})


def test_ranks_of_one_generation_number_their_steps_alike() -> None:  # SPEC D2
    first, second = Group(PARAMS, A, 1), Group(PARAMS, B, 1)
    assert not first.is_complete
    assert first.joined(B, 1)
    assert second.joined(A, 1)
    for _ in range(3):
        left, right = first.propose(IDLE, 5), second.propose(IDLE, 6)
        assert left.step == right.step
        assert left.deadline_ns == 5 + 1_000_000_000
        assert first.heard(proposals(left.step)) is not None
        assert second.heard(proposals(left.step)) is not None


def test_a_returned_rank_begins_a_new_generation_with_the_survivor() -> None:
    survivor, reborn = Group(PARAMS, A, 1), Group(PARAMS, B, 2)
    survivor.joined(B, 1)
    old = survivor.propose(IDLE, 0)
    assert survivor.lost(B, 1)
    assert not survivor.is_complete
    assert survivor.joined(B, 2)
    assert reborn.joined(A, 1)
    assert survivor.heard(proposals(old.step)) is None
    assert survivor.propose(IDLE, 0).step == reborn.propose(IDLE, 0).step != old.step


def test_a_stranger_and_an_old_incarnation_change_nothing() -> None:
    group = Group(PARAMS, A, 1)
    assert not group.joined(NodeId("rep-9"), 1)
    assert group.joined(B, 2)
    assert not group.joined(B, 1)
    assert not group.lost(B, 1)
    assert group.is_complete


def test_groups_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="two or more"):
        GroupParams(GroupId("group-0"), (A, A))
    with pytest.raises(ConfigError, match="no member"):
        Group(PARAMS, NodeId("rep-9"), 1)
