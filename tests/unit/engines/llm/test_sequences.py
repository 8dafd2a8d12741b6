import numpy as np
import pytest

from headway.core.errors import InvariantError
from headway.core.ids import RequestId
from headway.core.plans import NewSequence
from headway.core.request import SamplingParams
from headway.engines.llm.sequences import SequenceTable


def new(seq: int, prompt: tuple[int, ...] = (5, 6), outputs: tuple[int, ...] = ()) -> NewSequence:
    params = SamplingParams(max_tokens=4)
    return NewSequence(seq=seq, request=RequestId(f"req-{seq}"), prompt=prompt, outputs=outputs, sampling=params)


@pytest.fixture
def table() -> SequenceTable:
    return SequenceTable(max_tokens=16, max_blocks=3, pool_blocks=10)


def test_outputs_begin_behind_the_prompt_also_when_they_came_with_it(table: SequenceTable) -> None:
    slot = table.add(new(1, prompt=(5, 6), outputs=(7,)))
    table.append_tokens(np.array([slot], np.intp), np.array([8], np.int32))
    assert table.outputs(slot) == (7, 8)


def test_grows_without_losing_what_it_holds(table: SequenceTable) -> None:
    slots = {seq: table.add(new(seq, prompt=(seq, 9))) for seq in range(50)}
    assert len(set(slots.values())) == 50
    assert all(table.tokens[slot, 0] == seq for seq, slot in slots.items())


def test_a_slot_that_was_given_back_is_used_again(table: SequenceTable) -> None:
    slot = table.add(new(1, outputs=(3, 4)))
    table.set_table(slot, (1, 2))
    table.remove(1)
    again = table.add(new(2))
    assert (again, table.blocks[again], table.outputs(again)) == (slot, 0, ())


def test_refuses_what_cannot_be(table: SequenceTable) -> None:
    slot = table.add(new(1))
    with pytest.raises(InvariantError, match="new to the plan but known"):
        table.add(new(1))
    with pytest.raises(InvariantError, match="which the engine does not know"):
        table.remove(2)
    with pytest.raises(InvariantError, match="brings 40 tokens"):
        table.add(new(3, prompt=(1,) * 40))
    with pytest.raises(InvariantError, match="a table of 4 blocks exceeds 3"):
        table.set_table(slot, (0, 1, 2, 3))
    table.set_table(slot, (0, 1, 2))
    with pytest.raises(InvariantError, match="block 3 cannot follow 3 blocks"):
        table.append_block(slot, 3)
