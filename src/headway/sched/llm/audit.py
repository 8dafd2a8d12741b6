"""What must hold in the LLM machine after every event (SPEC B8)."""

from collections import Counter

from headway.core.errors import InvariantError
from headway.sched.llm.counting import CountingPool
from headway.sched.llm.sequence import SeqState, blocks_for
from headway.sched.llm.state import MachineState


def check_invariants(m: MachineState) -> None:
    """Raise InvariantError unless blocks, reserves and counts add up. O(blocks + sequences)."""
    states = Counter([seq.state.name for seq in m.seqs.values()])
    for seq in m.seqs.values():
        if not seq.table:
            continue
        if len(set(seq.table)) != len(seq.table) and not isinstance(m.pool, CountingPool):
            raise InvariantError(f"sequence {seq.id} has a block twice: {seq.table}")
        if len(seq.table) < blocks_for(m.computed_now(seq), m.block_size):
            raise InvariantError(f"sequence {seq.id} computed {m.computed_now(seq)} tokens in {len(seq.table)} blocks")
    lent = [block for block, count in m.loans.items() for _ in range(count)]
    tables = [seq.table for seq in m.seqs.values()]
    m.pool.audit([*tables, lent], sum(seq.reserve for seq in m.seqs.values()))
    if m.slots.size:
        m.slots.audit([seq.slots for seq in m.seqs.values()], 0)
    own = (SeqState.PREFILL, SeqState.JOINING, SeqState.DECODE, SeqState.STALLED, SeqState.FROZEN)
    facts = (
        ("running", m.running, sum(states[state.name] for state in own)),
        ("decodes", m.decodes, states["DECODE"]),
        ("waiting", m.waiting, states["WAITING"]),
        ("partial", len(m.partial), states["PREFILL"]),
        ("stalled", len(m.stalled), states["STALLED"]),
        ("adopted", len(m.adopted), states["ADOPTED"]),
    )
    for name, counted, found in facts:
        if counted != found:
            raise InvariantError(f"{name} is {counted}, sequences say {found}")
    if m.decodes > m.params.step_tokens or m.running > m.params.max_seqs:
        raise InvariantError(f"{m.decodes} decodes, {m.running} running")
