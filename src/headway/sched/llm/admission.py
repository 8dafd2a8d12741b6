"""Entry into the running set: who is next, whether it fits, and whom it may displace (SPEC B3, B4).

Nobody is admitted past the head of the order, so what the head needs can only become free for it.
"""

from headway.core.decisions import Alternative
from headway.core.plans import Swap
from headway.sched.llm.preemption import choose_victim, preempt
from headway.sched.llm.prefill import chunk_size, introduce, plan_chunk
from headway.sched.llm.records import record
from headway.sched.llm.sequence import PREFILL, Seq, blocks_for
from headway.sched.llm.state import Blocked, Draft, MachineState


def find_hits(m: MachineState, seq: Seq, step: int) -> list[int]:
    """Cached blocks that `seq` may start from; at least one token is left to compute."""
    if not seq.hashes or seq.slots or seq.request.prompt_logprobs:
        return []
    limit = (seq.target - 1) // m.block_size
    return m.pool.match(seq.request.cache_root, seq.hashes, seq.raw, limit, step)


def fits(m: MachineState, seq: Seq, hits: list[int], *, soon: bool) -> bool:
    """Room now, or (soon) once the open steps are done."""
    pool = m.pool
    total = blocks_for(seq.target, m.block_size)
    need = total - len(hits) + (m.params.watermark if m.running else 0)
    if seq.preemptions >= m.params.preemptions_max:
        need += seq.worst_blocks - total
    for block in hits:
        if not pool.state[block] or (soon and pool.state[block] < 0):
            need += 1  # hitting it takes it out of what is available
    return need <= pool.available + (pool.fenced if soon else 0)


def displace(m: MachineState, draft: Draft) -> None:
    """Preempt for a head that outranks the running; it starts when the fence lets the blocks go."""
    head = m.order.head(draft.step)
    hits: list[int] | None = None
    while head is not None:
        victim = choose_victim(m, draft.step, head)
        if victim is None:
            return
        if hits is None:
            hits = find_hits(m, head, draft.step)
        if m.running < m.params.max_seqs and fits(m, head, hits, soon=True):
            return
        preempt(m, victim, draft.at_ns, f"{head.request.id} outranks it and does not fit beside it")
        draft.calm = False


def admit(m: MachineState, draft: Draft, behind: list[Seq]) -> bool:
    """Start heads of the order while the step, the batch and the pool have room.

    `behind`: prompts in progress that wait for heads. True when it stopped at a head that is not before all of them.
    """
    while m.may_admit and m.params.step_tokens > draft.decodes + draft.prefill_tokens:
        seq = m.order.head(draft.step)
        if seq is None or seq.ready_after > m.done:
            return False
        if behind and not all(m.order.overtakes(seq, other) for other in behind):
            return True
        if _same_block(m, seq):
            return False
        hits = find_hits(m, seq, draft.step)
        m.visits += 1
        if not fits(m, seq, hits, soon=False):
            _block(m, draft, seq)
            return False
        draft.contended = draft.behind > 0 or (m.waiting > 1 and m.running + 1 < m.params.max_seqs)
        count = chunk_size(m, draft, seq, max(len(hits) * m.block_size, seq.computed))
        if count < 1:
            return False
        if m.params.decisions:
            _record_admission(m, draft, seq, len(hits))
        _start(m, draft, seq, hits)
        plan_chunk(m, draft, seq, count, introduce(draft, seq))
    return False


def _start(m: MachineState, draft: Draft, seq: Seq, hits: list[int]) -> None:
    step, total = draft.step, blocks_for(seq.target, m.block_size)
    for block in hits:
        m.pool.share(block)
    seq.table = hits + m.pool.take(total - len(hits))
    capped = seq.preemptions >= m.params.preemptions_max
    if capped:
        seq.reserve = seq.worst_blocks - total
        m.pool.set_reserve(seq.reserve)
    if seq.slots:
        held = len(seq.slots)
        draft.swap_in.append(Swap(seq.id, tuple(seq.table[:held]), tuple(seq.slots)))
        m.slots.drop(seq.slots, step, m.done)
        seq.slots = []
    else:
        seq.computed = len(hits) * m.block_size
        if hits:
            seq.cached, seq.parent = len(hits), m.pool.index.identity(hits[-1])
        if seq.hashes and not seq.preemptions:
            seq.hit_tokens = seq.computed
            m.prefix_hits += seq.computed
            m.prefix_queries += seq.prompt_tokens
    m.order.observe_start(seq, step, not capped)
    m.unqueue(seq)
    seq.state = PREFILL
    m.running += 1
    m.partial[seq] = None


def _same_block(m: MachineState, head: Seq) -> bool:
    """This head failed before, and nothing came free since."""
    if m.blocked is None or m.blocked.head is not head or not m.nothing_came_free:
        return False
    m.blocked = m.blocked._replace(changes=m.changes, evicted=m.pool.evicted)
    return True


def _block(m: MachineState, draft: Draft, seq: Seq) -> None:
    first = m.blocked is None or m.blocked.head is not seq
    m.blocked = Blocked(seq, m.pool.epoch, m.changes, m.pool.evicted, draft.step)
    if first and m.params.decisions:
        need = blocks_for(seq.target, m.block_size)
        reason = f"needs up to {need} KV blocks, {m.pool.available} of {m.pool.size} are available"
        record(m, "cache", "blocked", seq.request.id, reason, draft.at_ns, seq)


def _record_admission(m: MachineState, draft: Draft, seq: Seq, hits: int) -> None:
    alternatives: tuple[Alternative, ...] = ()
    kind = "admit"
    if m.order.competes and m.waiting > 1:
        kind = "order"
        rivals = m.order.runners_up(draft.step)
        alternatives = tuple(Alternative(s.request.id, m.order.score(s, draft.step)) for s in rivals)
    reason = f"{hits * m.block_size} of {seq.target} tokens cached, {m.waiting - 1} wait behind"
    record(m, "batch", kind, seq.request.id, reason, draft.at_ns, seq, alternatives)
