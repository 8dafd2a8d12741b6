"""Chunks of prompts, and the blocks that prefill and finished outputs offer to the prefix index."""

from array import array
from collections.abc import Sequence

from headway.core.blockhash import chain
from headway.core.plans import Chunk, NewSequence
from headway.cost.llm import pairs
from headway.sched.llm.pool import BROKEN
from headway.sched.llm.records import record
from headway.sched.llm.sequence import FROZEN, JOINING, PREFILL, Seq
from headway.sched.llm.state import Draft, MachineState


def in_turn(m: MachineState) -> list[Seq]:
    """Partly computed prompts in the order in which they go on."""
    return sorted(m.partial, key=m.order.turn) if m.order.takes_turns else list(m.partial)


def split_at_head(m: MachineState, partial: list[Seq], step: int) -> tuple[list[Seq], list[Seq]]:
    """Of `partial`, what goes on before the queue's head, and what after it."""
    head = m.order.head(step) if partial and m.waiting and m.order.takes_turns else None
    if head is None:
        return partial, []
    behind = [seq for seq in partial if m.order.overtakes(head, seq)]
    return [seq for seq in partial if seq not in behind], behind


def advance_partials(m: MachineState, draft: Draft, partial: list[Seq]) -> None:
    """Go on with prompts that are partly computed."""
    left = len(partial)
    for seq in partial:
        left -= 1
        draft.contended = left > 0 or draft.behind > 0 or m.may_admit
        count = chunk_size(m, draft, seq, seq.computed)
        if count < 1:
            return
        plan_chunk(m, draft, seq, count, () if seq.known else introduce(draft, seq))


def seat_adopted(m: MachineState) -> None:
    """Sequences that came with their blocks take seats before the queue does."""
    while m.adopted and m.running < m.params.max_seqs:
        seq = m.adopted.pop(next(iter(m.adopted)))
        seq.state = PREFILL
        m.running += 1
        m.partial[seq] = None
        m.order.observe_start(seq, m.step + 1, True)


def introduce(draft: Draft, seq: Seq) -> tuple[int, ...]:
    """Tell the executor about `seq`, if it has not heard of it; return its table."""
    if not seq.known:
        seq.known = True
        request = seq.request
        draft.new.append(NewSequence(seq.id, request.id, request.prompt, seq.emitted, request.sampling))
    return tuple(seq.table)


def chunk_size(m: MachineState, draft: Draft, seq: Seq, start: int) -> int:
    """How much of `seq` this step computes; 0 when the step is full."""
    room = m.params.step_tokens - draft.decodes - draft.prefill_tokens
    rest = seq.prompt_tokens + seq.outputs - start
    if rest < room:
        room = rest
    if room < 1:
        return 0
    count = m.chunker.count(draft, start, room)
    if count > room:
        count = room
    if count < room and m.params.decisions:
        why = m.chunker.why(draft, start, room, count)
        if why is not None and abs(count - seq.chunk_recorded) * 4 > seq.chunk_recorded:
            seq.chunk_recorded = count  # a size like the one before is no news
            record(m, "step", "chunk", str(count), why[0], draft.at_ns, seq, why[1])
    return count


def plan_chunk(m: MachineState, draft: Draft, seq: Seq, count: int, table: tuple[int, ...]) -> None:
    """Prefill `count` tokens of `seq` in this step. A planned chunk is irrevocable: later plans may read its blocks."""
    start, step = seq.computed, draft.step
    seq.computed = end = start + count
    last = end == seq.prompt_tokens + seq.outputs
    draft.chunks.append(Chunk(seq.id, start, count, last, table))
    draft.prefill_tokens += count
    draft.prefill_pairs += pairs(start, count)
    m.prompt_tokens += count
    m.order.observe_prefill(seq, step, count)
    m.visits += 1
    full = end // m.block_size
    if full > len(seq.hashes):  # outputs of an earlier stay have no hash
        full = len(seq.hashes)
    if full > seq.cached and seq.parent != BROKEN:
        seq.parent = m.pool.register_run(seq.table, seq.hashes, seq.raw, range(seq.cached, full), seq.parent, step)
        seq.cached = full
    if not last:
        return
    del m.partial[seq]
    seq.outputs += 1  # a placeholder until the step is done
    seq.first = seq.last = step
    if seq.holds and seq.outputs < seq.limit:
        seq.state, seq.leave_at = FROZEN, 0
        m.order.observe_stop(seq, step)
        return
    seq.state = JOINING
    m.set_limit(seq, step + 1)
    m.joins.append(seq)


def cache_output(m: MachineState, seq: Seq, output: Sequence[int], step: int) -> None:
    """Offer the blocks that decoding filled, so that a follow-up turn can hit them."""
    table = seq.table or seq.drained
    if not seq.raw or not table:
        return
    size, width = m.block_size, m.pool.width
    full = min((seq.prompt_tokens + len(output) - 1) // size, len(table))  # the last token was never fed back
    if full <= len(seq.hashes):
        return
    seq.raw += array("I", output).tobytes()
    parent = seq.hashes[-1] if seq.hashes else seq.request.cache_root
    for i in range(len(seq.hashes), full):
        parent = chain(parent, array("I", seq.raw[i * width : (i + 1) * width]))
        seq.hashes.append(parent)
    if seq.parent != BROKEN:
        seq.parent = m.pool.register_run(table, seq.hashes, seq.raw, range(seq.cached, full), seq.parent, step)
        seq.cached = full
