"""One request inside the LLM machine, and the states it passes."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headway.core.request import LlmRequest


class SeqState(Enum):
    """Where a sequence is. ADOPTED to FROZEN own blocks."""

    HELD = auto()  # waits for an input that is made elsewhere (encoder); not in the queue
    WAITING = auto()  # in the queue: new, or preempted
    ADOPTED = auto()  # came with its blocks; waits for a seat
    PREFILL = auto()
    JOINING = auto()  # its last chunk is planned; it decodes from the next plan on
    DECODE = auto()
    STALLED = auto()  # decodes again as soon as it gets its block
    FROZEN = auto()  # out of the batch, blocks kept: hand-off and migration
    DRAINING = auto()  # its last token is sampled by a step still open
    OVER = auto()


# Members by names of this module: to look one up in its class takes 0.2 us in Python 3.11, a global name almost none.
HELD: Final = SeqState.HELD
WAITING: Final = SeqState.WAITING
ADOPTED: Final = SeqState.ADOPTED
PREFILL: Final = SeqState.PREFILL
JOINING: Final = SeqState.JOINING
DECODE: Final = SeqState.DECODE
STALLED: Final = SeqState.STALLED
FROZEN: Final = SeqState.FROZEN
DRAINING: Final = SeqState.DRAINING
OVER: Final = SeqState.OVER


@dataclass(slots=True, eq=False)
class Seq:
    """Counts are current for all committed plans, except while DECODE: then `computed` and `outputs` are as of the
    start of step `join`, and every step since added one to both.

    Samples of one stay lie in the contiguous steps `first`..`last`; a sequence that left the batch rejoins only when
    they have landed, so that "how many tokens were there after step t" has one answer.
    """

    id: int
    request: LlmRequest
    limit: int  # outputs it may have, emitted ones included
    worst_blocks: int
    raw: bytes  # prompt as 32-bit tokens; empty: not cacheable
    emitted: tuple[int, ...] = ()  # outputs that another stay emitted
    outputs: int = 0  # sampled, placeholders included
    state: SeqState = WAITING
    table: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is written
    join: int = 0
    first: int = 0
    last: int = 0
    leave_at: int = 0  # first plan that must not contain it (length limit); 0: unknown
    ready_after: int = 0  # readmission waits for this step
    preemptions: int = 0
    reserve: int = 0  # blocks set aside for it in the pool
    cached: int = 0  # leading blocks offered to the prefix index
    parent: int | bytes = b""  # content identity of the last of them; the cache root before the first
    hit_tokens: int = 0  # prompt tokens found in the cache at its first admission
    queued_tokens: int = 0  # prefill tokens it adds to the queue while WAITING
    slots: list[int] = field(default_factory=list)  # host slots that hold its KV while swapped out
    chunk_recorded: int = 0  # size in the last decision record of a chunk
    drained: list[int] = field(default_factory=list)  # its table while DRAINING: behind the fence of its last step
    known: bool = False  # the executor has heard of it
    holds: bool = False  # stops after prefill and first token (P/D)

    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.request.prompt)

    @property
    def target(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.prompt_tokens + self.outputs

    @property
    def urgency(self) -> int:
        return self.request.urgency

    @property
    def arrived_ns(self) -> int:
        return self.request.arrived_ns


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)
