"""Blocks for decodes that open one at this step; when there are none, somebody gives way or the sequence stalls.

A victim's blocks come back only when the open steps are done. So preemption stops as soon as what is owed to stalled
sequences is behind the fence (vllm-ascend#16315: without that rule each preemption frees nothing now and evicts all).
"""

from headway.core.errors import InvariantError
from headway.core.plans import Join
from headway.sched.llm.preemption import choose_victim, preempt
from headway.sched.llm.sequence import DECODE, STALLED, Seq
from headway.sched.llm.state import Draft, MachineState


def grant(m: MachineState, draft: Draft) -> None:
    """One block to each decode that opens one at this step; sets `draft.calm` to False if any was preempted."""
    bucket = m.wheel[draft.step % m.block_size]
    if not m.stalled:
        if not bucket:
            return
        if len(bucket) <= m.pool.available:
            m.visits += len(bucket)
            draft.grants = grant_all(m, bucket)
            return
    m.visits += len(bucket) + len(m.stalled)
    grants: list[tuple[int, int]] = []
    owed = 0  # blocks promised out of those behind the fence
    for seq in [*m.stalled, *[m.seqs[number] for number in bucket]]:
        if seq.state is STALLED:
            owed += _resume(m, draft, grants, seq, owed)
        elif seq.state is DECODE:
            owed += _open_block(m, draft, grants, seq, owed)
    draft.grants = tuple(grants)


def grant_all(m: MachineState, bucket: dict[int, list[int]]) -> tuple[tuple[int, int], ...]:
    """One block to each of the bucket; the caller saw that there are enough."""
    blocks = m.pool.take(len(bucket))
    for table, block in zip(bucket.values(), blocks, strict=True):
        table.append(block)
    if m.pool.reserved:
        for number in bucket:
            seq = m.seqs[number]
            if seq.reserve:
                seq.reserve -= 1
                m.pool.reserved -= 1
    return tuple(zip(bucket, blocks, strict=True))


def _resume(m: MachineState, draft: Draft, grants: list[tuple[int, int]], seq: Seq, owed: int) -> int:
    """Let a stalled sequence decode again; return the blocks it is still owed."""
    opens = seq.computed == len(seq.table) * m.block_size
    if opens and not _make_room(m, draft, seq, owed):
        return 0
    if seq.last > m.done or (opens and not _one_free(m, seq)):
        return int(opens)
    if opens:
        grants.append(_take_one(m, seq))
    del m.stalled[seq]
    draft.entered.append((seq, Join(seq.id, step=seq.last)))
    seq.first = draft.step
    m.enter(seq, draft.step)
    return 0


def _open_block(m: MachineState, draft: Draft, grants: list[tuple[int, int]], seq: Seq, owed: int) -> int:
    if not _make_room(m, draft, seq, owed):
        return 0
    if _one_free(m, seq):
        grants.append(_take_one(m, seq))
        return 0
    if seq.join < draft.step:  # else the executor gave it no row yet
        m.pauses[seq.id] = None
    m.leave_batch(seq)
    seq.state = STALLED
    m.stalled[seq] = None
    m.stalls += 1
    return 1


def _make_room(m: MachineState, draft: Draft, seq: Seq, owed: int) -> bool:
    """Preempt until a block for `seq` is free or on its way; False when `seq` itself had to give way."""
    while not _one_free(m, seq) and owed >= m.pool.fenced:
        victim = choose_victim(m, draft.step)
        if victim is None:
            raise InvariantError(f"sequence {seq.id} needs a block and nobody may be preempted")
        preempt(m, victim, draft.at_ns, f"{seq.request.id} needs a block at step {draft.step}, none is free")
        draft.calm = False
        if victim is seq:
            return False
    return True


def _take_one(m: MachineState, seq: Seq) -> tuple[int, int]:
    block = m.pool.take(1)[0]
    seq.table.append(block)
    if seq.reserve:
        seq.reserve -= 1
        m.pool.reserved -= 1
    return seq.id, block


def _one_free(m: MachineState, seq: Seq) -> bool:
    return seq.reserve > 0 or m.pool.available > 0
