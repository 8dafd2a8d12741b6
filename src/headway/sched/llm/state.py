"""State of the LLM machine, and the moves between running, waiting and over that keep its closed forms exact.

A decoding sequence is not visited per step: its counts are lines in the step number, the block it opens next waits in
a wheel (bucket n mod block size), its length limit in a calendar.
"""

from heapq import heappush
from typing import NamedTuple

import msgspec

from headway.core.decisions import Decision
from headway.core.ids import NodeId
from headway.core.plans import Chunk, Join, NewSequence, Swap
from headway.core.ports import ModelLimits
from headway.core.request import FinishReason
from headway.core.units import Ns
from headway.cost.llm import StepCost, StepShape
from headway.sched.llm.params import LlmParams
from headway.sched.llm.pool import BlockPool
from headway.sched.llm.protocols import ChunkPolicy, OrderPolicy
from headway.sched.llm.sequence import ADOPTED, DECODE, DRAINING, FROZEN, HELD, OVER, PREFILL, STALLED, WAITING, Seq


class Ended(msgspec.Struct, frozen=True):
    """A sequence is over. `output_tokens` counts emitted ones too."""

    seq: int
    reason: FinishReason
    output_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0


class Blocked(NamedTuple):
    """The head that did not fit, and what was so when it was looked at."""

    head: Seq
    epoch: int  # of the pool
    changes: int  # of the queue
    evicted: int  # from the prefix index
    step: int


class Draft:
    """The plan being made; also the StepView of chunk policies."""

    # As they are until something happens: one is made for each step in which not everybody just goes on.
    calm = True  # nobody was preempted for this plan
    grants: tuple[tuple[int, int], ...] = ()
    decodes = kv_tokens = 0
    prefill_tokens = prefill_pairs = 0
    contended = False
    behind = 0  # partly computed prompts that go on after admissions

    def __init__(self, step: int, at_ns: Ns) -> None:
        self.step, self.at_ns = step, at_ns
        self.entered: list[tuple[Seq, Join]] = []
        self.chunks: list[Chunk] = []
        self.new: list[NewSequence] = []
        self.swap_in: list[Swap] = []


class MachineState:
    """Everything a machine knows. The stages in this package are functions on it."""

    def __init__(
        self,
        params: LlmParams,
        limits: ModelLimits,
        belief: StepCost | None,
        pool: BlockPool,
        replica: NodeId,
    ) -> None:
        self.params, self.limits, self.belief, self.replica = params, limits, belief, replica
        self.block_size = limits.block_size
        self.pool = pool
        self.slots = BlockPool(limits.host_slots if params.swap else 0)
        self.order: OrderPolicy
        self.chunker: ChunkPolicy
        self.seqs: dict[int, Seq] = {}
        self.last_seq = 0
        self.step = 0  # last committed plan
        self.done = 0  # last step reported done
        self.running = 0  # PREFILL, JOINING, DECODE, STALLED and FROZEN
        self.waiting = 0
        self.waiting_tokens = 0
        self.decodes = 0
        self.kv_base = 0  # sum of (computed - join) over DECODE
        self.joins: list[Seq] = []
        self.partial: dict[Seq, None] = {}
        self.stalled: dict[Seq, None] = {}
        self.adopted: dict[int, Seq] = {}
        self.guided: dict[Seq, None] = {}  # sample after the host has seen the token before
        # By step of the next new block: numbers and tables, which keep their place in memory while a sequence decodes.
        self.wheel: list[dict[int, list[int]]] = [{} for _ in range(limits.block_size)]
        self.calendar: dict[int, list[int]] = {}  # leave_at -> numbers of sequences; entries may be stale
        self.dues: list[int] = []  # heap of its keys, those of the past too
        self.leaves: list[int] = []
        self.preempts: dict[int, None] = {}
        self.pauses: dict[int, None] = {}
        self.swap_outs: list[Swap] = []
        self.at_ns: Ns = 0  # of the plan being made
        self.changes = 0  # of the queue
        self.blocked: Blocked | None = None
        self.loans: dict[int, int] = {}  # block -> references held outside (transfers)
        self.open_shapes: dict[int, StepShape] = {}  # steps whose time the belief will learn
        self.last_kind = ""
        self.decisions: list[Decision] = []
        self.visits = 0  # sequences touched; the measure of SPEC B9
        self.prefix_hits = self.prefix_queries = 0
        self.preemptions = self.swaps = self.recomputed_tokens = self.stalls = 0
        self.prompt_tokens = self.generated_tokens = 0

    # Counts

    def outputs_at(self, seq: Seq, step: int) -> int:
        """Outputs sampled by steps up to `step`, which is not before the stay that runs now."""
        outputs, last = seq.outputs, seq.last
        if seq.state is DECODE and seq.join <= self.step:
            outputs += self.step - seq.join + 1
            last = self.step
        return outputs - max(0, last - max(step, seq.first - 1))

    def computed_now(self, seq: Seq) -> int:
        """Tokens whose KV is written once every committed step is done."""
        if seq.state is DECODE:
            return seq.computed + self.step - seq.join + 1
        return seq.computed

    @property
    def is_steady(self) -> bool:
        """Some decode, and nobody enters, leaves or waits."""
        return not self.waiting and self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Some decode, and nobody enters or leaves; some may wait."""
        return bool(self.decodes) and not (
            self.joins
            or self.partial
            or self.stalled
            or self.adopted
            or self.leaves
            or self.preempts
            or self.pauses
            or self.swap_outs
            or self.guided
        )

    @property
    def nothing_came_free(self) -> bool:
        """Since the head that is `blocked` failed, nothing happened in pool and cache that could let one in.

        In between need only grows and room only shrinks.
        """
        known = self.blocked
        return known is not None and known.epoch == self.pool.epoch and self.pool.last_registered < known.step

    @property
    def may_admit(self) -> bool:
        """Somebody waits, a seat is free, and the head is not known to be blocked."""
        if not self.waiting or self.running >= self.params.max_seqs:
            return False
        known, depends = self.blocked, self.order.head_depends_on
        if known is None or known.changes != self.changes or depends == "step":
            return True
        return not self.nothing_came_free or (depends == "cache" and known.evicted != self.pool.evicted)

    @property
    def may_let_in(self) -> bool:
        """Somebody who waits could enter with the next plan, or its grants could change who is next (they evict)."""
        order = self.order
        return bool(self.waiting) and (order.displaces or order.head_depends_on == "cache" or self.may_admit)

    # Membership

    def enter(self, seq: Seq, step: int) -> None:
        """Start decoding at `step`: from here on, time does the counting."""
        seq.state, seq.join = DECODE, step
        self.wheel[(step - seq.computed) % self.block_size][seq.id] = seq.table
        self.set_limit(seq, step)
        self.decodes += 1
        self.kv_base += seq.computed - step
        self.order.observe_decode(seq, step, 1)
        self.chunker.observe_decode(seq, self.at_ns, 1)
        self.visits += 1

    def leave_batch(self, seq: Seq) -> None:
        """Stop decoding after the last committed plan; materialise the counts."""
        step = self.step + 1
        self.kv_base -= seq.computed - seq.join
        del self.wheel[(seq.join - seq.computed) % self.block_size][seq.id]
        if seq.join < step:
            seq.last = self.step
        seq.computed += step - seq.join
        seq.outputs += step - seq.join
        seq.leave_at = 0
        self.decodes -= 1
        self.order.observe_decode(seq, step, -1)
        self.chunker.observe_decode(seq, self.at_ns, -1)

    def set_limit(self, seq: Seq, step: int) -> None:
        """`seq` has `outputs` tokens when it decodes first at `step`."""
        leave = step + seq.limit - seq.outputs
        if leave != seq.leave_at:
            seq.leave_at = leave
            due = self.calendar.get(leave)
            if due is None:
                self.calendar[leave] = [seq.id]
                heappush(self.dues, leave)
            else:
                due.append(seq.id)

    def lose_turn(self, seq: Seq) -> None:
        """`seq` gave way. Should it come back without a step lost, it is due when it was, after those who stayed."""
        leave = self.step + 1 + seq.limit - seq.outputs
        due = self.calendar.get(leave, ())
        if seq.id in due:
            self.calendar[leave] = [number for number in due if number != seq.id]

    def queue(self, seq: Seq) -> None:
        """Put `seq` into the order."""
        seq.state = WAITING
        seq.queued_tokens = seq.target - seq.computed
        self.waiting += 1
        self.changes += 1
        self.waiting_tokens += seq.queued_tokens
        self.order.observe_wait(seq, self.step + 1)

    def unqueue(self, seq: Seq) -> None:
        """Take `seq` out of the order."""
        self.waiting -= 1
        self.changes += 1
        self.waiting_tokens -= seq.queued_tokens
        self.order.observe_unwait(seq, self.step + 1)

    def retire(self, seq: Seq, fence: int) -> None:
        """Leave the running set; its blocks wait until step `fence` is done."""
        state = seq.state
        if state is DECODE:
            self.leave_batch(seq)
        elif state is PREFILL:
            del self.partial[seq]
        elif state is STALLED:
            del self.stalled[seq]
        self.running -= 1
        self.visits += 1
        if state is not FROZEN:  # the order let it go when it froze
            self.order.observe_stop(seq, self.step + 1)
        self.pool.drop(seq.table, fence, self.done)
        if seq.reserve:
            self.pool.set_reserve(-seq.reserve)
            seq.reserve = 0

    def forget(self, seq: Seq) -> None:
        """The executor drops `seq` with the next plan; what it was to be told before is void."""
        self.preempts.pop(seq.id, None)
        self.pauses.pop(seq.id, None)
        self.guided.pop(seq, None)
        if seq.known:
            self.leaves.append(seq.id)
            seq.known = False

    def drain(self, seq: Seq) -> None:
        """Its limit is reached by a step still open: out of the batch, over when that step is done."""
        leave = seq.leave_at
        self.retire(seq, self.step)
        self.forget(seq)
        seq.state, seq.leave_at, seq.drained, seq.table = DRAINING, leave, seq.table, []

    def finish(self, seq: Seq, reason: FinishReason, step: int) -> Ended:
        """End `seq` with what it had sampled by `step`."""
        outputs = self.outputs_at(seq, step)
        state = seq.state
        if state is WAITING:
            self.unqueue(seq)
            if seq.slots:
                self.slots.drop(seq.slots, max(seq.ready_after, self.step), self.done)
        elif state is ADOPTED:
            del self.adopted[seq.id]
            self.pool.drop(seq.table, self.step, self.done)
        elif state is not DRAINING and state is not HELD:
            self.retire(seq, self.step)
        self.forget(seq)
        seq.state = OVER
        del self.seqs[seq.id]
        self.generated_tokens += outputs
        return Ended(seq.id, reason, outputs, seq.hit_tokens, seq.preemptions)
