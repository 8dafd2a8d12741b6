"""Who gives way, and how: compute again, or swap to host slots, whichever the belief says is cheaper (SPEC B4)."""

from headway.core.decisions import Alternative
from headway.core.plans import Swap
from headway.sched.llm.records import record
from headway.sched.llm.sequence import Seq, SeqState, blocks_for
from headway.sched.llm.state import MachineState

_SWAPPABLE = (SeqState.DECODE, SeqState.STALLED)


def redo_cost(m: MachineState, seq: Seq) -> tuple[int, bool]:
    """Return what preempting `seq` costs (ns; tokens without a belief) and whether by swap."""
    computed = m.computed_now(seq)
    if m.belief is None:
        return computed, False
    again = m.belief.recompute_ns(computed)
    if m.params.swap and seq.state in _SWAPPABLE:
        blocks = blocks_for(computed, m.block_size)
        swap = m.belief.swap_ns(blocks)
        if swap < again and blocks <= m.slots.available:
            return swap, True
    return again, False


def choose_victim(m: MachineState, step: int, head: Seq | None = None) -> Seq | None:
    """The least urgent, and among the latest of those the one whose work is cheapest to redo.

    With a `head`, of those that it outranks. The earliest of the window stays, so that somebody always gets ahead.
    """
    window = m.order.victims(step)
    if head is not None:
        window = [seq for seq in window if m.order.outranks(head, seq)]
    if len(window) > 1:
        window = window[:-1]
    if not window:
        return None
    best = min(range(len(window)), key=lambda i: (redo_cost(m, window[i])[0], i))
    return window[best]


def preempt(m: MachineState, seq: Seq, at_ns: int, reason: str) -> None:
    """Take the blocks of `seq`; it keeps its tokens and waits again. Counts against its cap."""
    cost, by_swap = redo_cost(m, seq)
    if m.params.decisions:
        others = [s for s in m.order.victims(m.step + 1) if s is not seq]
        scores = [(seq, cost), *((other, redo_cost(m, other)[0]) for other in others)]
        how = "swap" if by_swap else "recompute"
        alternatives = tuple(Alternative(other.request.id, float(value)) for other, value in scores)
        record(m, "cache", "preempt", f"{seq.request.id}:{how}", reason, at_ns, seq, alternatives)
    release_blocks(m, seq, by_swap)
    seq.preemptions += 1
    m.preemptions += 1
    m.queue(seq)


def release_blocks(m: MachineState, seq: Seq, by_swap: bool) -> None:
    """Move `seq` out of the running set, ready to be queued."""
    table = seq.table
    if by_swap:
        fence = m.step + 1  # the copy is part of the next step
        m.retire(seq, fence)
        count = blocks_for(seq.computed, m.block_size)
        seq.slots = m.slots.take(count)
        m.swap_outs.append(Swap(seq.id, tuple(table[:count]), tuple(seq.slots)))
        m.swaps += 1
        seq.ready_after = fence
    else:
        m.retire(seq, m.step)
        m.lose_turn(seq)
        m.recomputed_tokens += seq.computed
        seq.computed = 0
        seq.ready_after = seq.last
    m.pauses.pop(seq.id, None)
    m.preempts[seq.id] = None
    seq.table, seq.leave_at, seq.cached, seq.parent = [], 0, 0, seq.request.cache_root
