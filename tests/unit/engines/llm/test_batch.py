from pathlib import Path

import numpy as np
import pytest
import torch

from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.request import SamplingParams
from headway.engines.llm.batch import BatchLayout, PersistentBatch
from headway.engines.llm.config import read_config
from headway.engines.llm.kv import KvPool
from headway.engines.llm.sequences import SequenceTable

CPU = torch.device("cpu")


@pytest.fixture
def batch(tiny_folder: Path) -> PersistentBatch:
    kv = KvPool(read_config(tiny_folder), blocks=8, block_size=8, host_slots=0, device=CPU)
    layout = BatchLayout(rows_max=64, rows_per_tile=4)
    return PersistentBatch(SequenceTable(max_tokens=64, max_blocks=8, pool_blocks=8), kv, layout)


def admit(batch: PersistentBatch) -> StepPlan:
    """Sequence 1 holds 9 positions in blocks 5 and 3, sequence 2 begins with 6 of its 10 tokens in block 7."""
    new = tuple(
        NewSequence(
            seq=seq,
            request=RequestId(f"req-{seq}"),
            prompt=tuple(range(10 * seq, 10 * seq + count)),
            outputs=(),
            sampling=SamplingParams(max_tokens=8),
        )
        for seq, count in ((1, 9), (2, 10))
    )
    chunks = (
        Chunk(seq=1, start=0, count=9, samples=True, table=(5, 3)),
        Chunk(seq=2, start=0, count=6, samples=False, table=(7, 6)),
    )
    plan = StepPlan(step=1, basis_step=0, kind="prefill", new=new, chunks=chunks, prefill_tokens=15)
    batch.apply(plan, lambda slot, new: None)
    return plan


def test_lays_rows_out_by_sequence_with_slots_from_their_tables(batch: PersistentBatch) -> None:
    inputs = batch.inputs(admit(batch))
    assert inputs.tokens.tolist() == [*range(10, 19), *range(20, 26)]
    assert inputs.rows.slots.tolist() == [*range(40, 48), 24, *range(56, 62)]
    assert inputs.rows.contexts.tolist() == [*range(1, 10), *range(1, 7)]
    assert inputs.rows.tile_starts.tolist() == [0, 4, 8, 9, 13, 15]
    assert (inputs.seqs, inputs.sampled.tolist()) == ((1,), [8])


def test_a_step_uses_the_blocks_of_its_rows_and_writes_where_they_store(batch: PersistentBatch) -> None:
    # SPEC E2
    plan = admit(batch)
    inputs = batch.inputs(plan)
    assert batch.touched(inputs) == ({3, 5, 6, 7}, {3, 5, 7})
    batch.advance(plan)
    decode = StepPlan(2, 1, "decode", join=(Join(seq=1, token=4, step=1),), decodes=1, kv_tokens=10, bucket=4)
    batch.apply(decode, lambda slot, new: None)
    batch._sequences.append_tokens(inputs.slots, np.array([4], np.int32))
    assert batch.touched(batch.inputs(decode)) == ({3, 5}, {3})


def test_decodes_come_first_and_one_tile_each(batch: PersistentBatch) -> None:
    plan = admit(batch)
    batch.inputs(plan)
    batch.advance(plan)
    chunk = Chunk(seq=2, start=6, count=4, samples=True)
    plan = StepPlan(
        step=2,
        basis_step=1,
        kind="mixed",
        join=(Join(seq=1, token=19),),
        chunks=(chunk,),
        decodes=1,
        kv_tokens=10,
        prefill_tokens=4,
    )
    batch.apply(plan, lambda slot, new: None)
    inputs = batch.inputs(plan)
    assert inputs.tokens.tolist() == [19, 26, 27, 28, 29]
    assert inputs.rows.tile_starts.tolist() == [0, 1, 5]
    assert (inputs.seqs, inputs.sampled.tolist()) == ((1, 2), [0, 4])


# SPEC E1
def test_inputs_stand_at_the_same_addresses_in_every_step(batch: PersistentBatch) -> None:
    plan = admit(batch)
    first = batch.inputs(plan)
    second = batch.inputs(plan)
    fields = ("positions", "slots", "contexts", "owners", "tables", "tile_starts")
    assert [getattr(first.rows, name).data_ptr() for name in fields] == [
        getattr(second.rows, name).data_ptr() for name in fields
    ]
    assert first.tokens.data_ptr() == second.tokens.data_ptr()


def test_padding_writes_to_the_scratch_block_and_sees_nothing(batch: PersistentBatch) -> None:
    plan = StepPlan(step=1, basis_step=0, kind="dummy", bucket=4)
    inputs = batch.inputs(plan)
    assert inputs.rows.slots.tolist() == [64] * 4
    assert inputs.rows.contexts.tolist() == [0] * 4
    assert inputs.padded_rows == 4
