"""What a node tells others about itself. A reader sees only reports, with their age, never the node's live state."""

import msgspec

from headway.core.ids import NodeId
from headway.core.ledger import AccountView
from headway.core.units import Ns


class ReplicaReport(msgspec.Struct, frozen=True):
    """A WorkerNode's state; on change, at most every 20 ms, numbered."""

    replica: NodeId
    incarnation: int
    number: int
    at_ns: Ns
    role: str  # llm, diffusion, stage
    model: str
    waiting: int
    running: int
    waiting_prefill_tokens: int
    running_kv_tokens: int
    kv_blocks_free: int
    kv_blocks_total: int
    submits_seen: int  # Submits folded in; the front adds what it dispatched since
    step_ns: Ns = 0  # smoothed step time
    prefill_tokens_per_s: float = 0.0  # learned; 0: not yet
    draining: bool = False
    counters: tuple[tuple[str, int], ...] = ()  # monotonic: prefix hit and query tokens, preemptions, steps...
    accounts: tuple[AccountView, ...] = ()
