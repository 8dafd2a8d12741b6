"""A failed engine step. "Every decode emits one token per planned step" no longer holds: all later lengths are void."""

from headway.sched.llm.sequence import SeqState
from headway.sched.llm.state import Ended, MachineState


def void_open_steps(m: MachineState) -> list[Ended]:
    """Everybody waits again with the tokens that landed; nothing counts against a cap; no KV is trusted.

    Nobody ends: a sequence whose last token was in an open step goes on too. It counts as known to the executor, so the
    caller introduces it again together with the others (`sched/voided.py`).
    """
    back = list(m.seqs.values())
    for seq in back:
        outputs, state = m.outputs_at(seq, m.done), seq.state
        if state is SeqState.WAITING:
            m.unqueue(seq)
        elif state is SeqState.ADOPTED:
            del m.adopted[seq.id]
            m.pool.drop(seq.table, m.step, m.done)
        elif state is SeqState.DRAINING:
            seq.known = True
        elif state is not SeqState.HELD:
            m.retire(seq, m.step)
        if seq.slots:
            m.slots.drop(seq.slots, m.step, m.done)
        seq.slots, seq.table, seq.drained = [], [], []
        seq.outputs, seq.computed = outputs, 0
        seq.first = seq.last = seq.leave_at = seq.ready_after = seq.cached = 0
        seq.parent = seq.request.cache_root
        if seq.known:
            m.preempts[seq.id] = None
    m.leaves = [number for number in m.leaves if number not in m.seqs]
    for group in (m.joins, m.calendar, m.pauses, m.swap_outs, m.open_shapes):
        group.clear()
    for number in range(m.done + 1, m.step + 1):
        m.pool.release(number)
        m.slots.release(number)
    m.done = m.step
    m.pool.forget_cached()
    for seq in back:
        if seq.state is not SeqState.HELD:
            m.queue(seq)
    return []
