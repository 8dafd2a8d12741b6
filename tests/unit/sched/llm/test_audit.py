"""The audit notices when the machine's counts and sequences drift apart (SPEC B8)."""

from collections.abc import Callable

import pytest
from tests.property.rig import Rig

from headway.core.errors import InvariantError
from headway.sched.llm.state import MachineState


def lose_a_block(m: MachineState) -> None:
    next(seq for seq in m.seqs.values() if seq.table).table.pop()


def share_a_block(m: MachineState) -> None:
    first, second = [seq for seq in m.seqs.values() if seq.table][:2]
    second.table[0] = first.table[0]


def forget_a_decode(m: MachineState) -> None:
    m.decodes -= 1


def invent_a_waiter(m: MachineState) -> None:
    m.waiting += 1


def keep_a_seat(m: MachineState) -> None:
    m.running += 1


def reserve_for_nobody(m: MachineState) -> None:
    m.pool.reserved += 1


def lend_twice(m: MachineState) -> None:
    m.loans[0] = 1


# SPEC B8
@pytest.mark.parametrize(
    "damage",
    [
        lose_a_block, share_a_block, forget_a_decode, invent_a_waiter, keep_a_seat, reserve_for_nobody, lend_twice,
    ],
)  # fmt: skip
def test_it_notices(damage: Callable[[MachineState], None]) -> None:
    rig = Rig()
    for _ in range(3):
        rig.new(6, 20)
    for _ in range(4):
        rig.step()
    rig.machine.check_invariants()
    damage(rig.machine.state)
    with pytest.raises(InvariantError):
        rig.machine.check_invariants()
