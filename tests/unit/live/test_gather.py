from collections.abc import Callable

import pytest

from headway.core.errors import InvariantError
from headway.core.events import Proposal
from headway.core.ids import GroupId, NodeId
from headway.live.clock import Clock
from headway.live.gather import Gatherer

G, A, B = GroupId("g"), NodeId("rep-a"), NodeId("rep-b")
DECODE, IDLE = Proposal("decode", 2, 4), Proposal("idle", 0, 0)


class World:
    def __init__(self) -> None:
        self.complete: list[tuple[GroupId, int, dict[NodeId, Proposal]]] = []
        self.missing: list[tuple[GroupId, int, list[NodeId]]] = []
        self.timers: list[Callable[[], None]] = []
        self.gatherer = Gatherer(
            {G: (A, B)},
            Clock(),
            lambda delay, call: self.timers.append(call),
            lambda *seen: self.complete.append(seen),
            lambda *seen: self.missing.append(seen),
        )


def test_everyone_gets_all_proposals_in_member_order() -> None:
    # SPEC D2
    world = World()
    world.gatherer.propose(B, G, 1, IDLE, 10)
    assert world.complete == []
    world.gatherer.propose(A, G, 1, DECODE, 10)
    assert world.complete == [(G, 1, {A: DECODE, B: IDLE})]
    assert list(world.complete[0][2]) == [A, B]


def test_proposals_of_two_steps_do_not_mix() -> None:
    world = World()
    world.gatherer.propose(A, G, 1, DECODE, 10)
    world.gatherer.propose(A, G, 2, IDLE, 10)
    world.gatherer.propose(B, G, 2, IDLE, 10)
    assert [step for _, step, _ in world.complete] == [2]


def test_a_silent_member_is_reported_at_the_deadline() -> None:
    world = World()
    world.gatherer.propose(A, G, 1, DECODE, 10)
    world.timers[0]()
    assert world.missing == [(G, 1, [B])]


def test_a_complete_step_reports_nobody_at_its_deadline() -> None:
    world = World()
    world.gatherer.propose(A, G, 1, DECODE, 10)
    world.gatherer.propose(B, G, 1, DECODE, 10)
    world.timers[0]()
    assert world.missing == []


def test_a_lost_member_voids_what_is_open() -> None:
    world = World()
    world.gatherer.propose(A, G, 1, DECODE, 10)
    world.gatherer.forget(B)
    world.timers[0]()
    assert world.missing == []


@pytest.mark.parametrize("node", [NodeId("rep-x"), A])
def test_a_stranger_and_a_second_proposal_are_bugs(node: NodeId) -> None:
    world = World()
    world.gatherer.propose(A, G, 1, DECODE, 10)
    with pytest.raises(InvariantError):
        world.gatherer.propose(node, G, 1, DECODE, 10)
