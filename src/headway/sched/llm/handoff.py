"""Blocks and sequences that come from, or go to, another replica (SPEC C; the protocol is in `sched/transfer`)."""

from array import array
from collections.abc import Sequence

from headway.core.errors import CapacityError, InvariantError
from headway.core.request import FinishReason, LlmRequest
from headway.core.units import Ns
from headway.sched.llm.intake import new_seq
from headway.sched.llm.sequence import Seq, SeqState, blocks_for
from headway.sched.llm.state import MachineState


class Lending:
    """The side of the machine that transfers see."""

    def __init__(self, state: MachineState) -> None:
        self.state = state

    def _seq(self, seq: int) -> Seq:
        found = self.state.seqs.get(seq)
        if found is None:
            raise InvariantError(f"sequence {seq} is not at {self.state.replica}")
        return found

    def reserve_blocks(self, count: int) -> tuple[int, ...] | None:
        """Hold `count` blocks for a transfer that will write them; None when they are not available."""
        m = self.state
        if count > m.pool.available:
            return None
        blocks = m.pool.take(count)
        for block in blocks:
            m.loans[block] = m.loans.get(block, 0) + 1
        return tuple(blocks)

    def pin_blocks(self, blocks: Sequence[int]) -> None:
        """Keep blocks that a transfer reads, whatever happens to their sequence; `free_blocks` lets them go."""
        m = self.state
        for block in blocks:
            m.pool.share(block)
            m.loans[block] = m.loans.get(block, 0) + 1

    def free_blocks(self, blocks: Sequence[int]) -> None:
        """Return what `reserve_blocks` or `pin_blocks` handed out."""
        self._settle(blocks)
        self.state.pool.drop(blocks, self.state.step, self.state.done)

    def _settle(self, blocks: Sequence[int]) -> None:
        loans = self.state.loans
        for block in blocks:
            left = loans.get(block, 0) - 1
            if left < 0:
                raise InvariantError(f"block {block} is not lent")
            if left:
                loans[block] = left
            else:
                del loans[block]

    def prefix_hits(self, request: LlmRequest) -> tuple[int, ...]:
        """Cached blocks with which its prompt begins, written by steps that are done; a token is left to compute."""
        m = self.state
        is_hashed = len(request.block_hashes) == len(request.prompt) // m.block_size
        if not (m.params.prefix_cache and request.cache_root and is_hashed) or request.prompt_logprobs:
            return ()
        limit, raw = (len(request.prompt) - 1) // m.block_size, array("I", request.prompt).tobytes()
        return tuple(m.pool.match(request.cache_root, request.block_hashes, raw, limit, m.done + 1))

    def store_prefix(self, request: LlmRequest, blocks: Sequence[int]) -> None:
        """Offer lent `blocks`, which hold the first full blocks of the prompt, to the prefix index."""
        m, raw = self.state, array("I", request.prompt).tobytes()
        m.pool.register_run(blocks, request.block_hashes, raw, range(len(blocks)), request.cache_root, m.step)

    def adopt(
        self,
        request: LlmRequest,
        outputs: tuple[int, ...],
        blocks: Sequence[int],
        computed: int,
        at_ns: Ns,  # noqa: ARG002  events carry their time; nothing here needs it
    ) -> int:
        """Go on with a sequence whose first `computed` tokens lie in lent `blocks`; returns its number here.

        It passes the queue: it starts as soon as there is a seat (`max_seqs`). Missing blocks are taken, spare ones
        freed. Raises CapacityError when the missing ones are not available, RequestError when it could never fit.
        """
        m = self.state
        seq = new_seq(m, m.last_seq + 1, request, outputs)
        if not 0 <= computed < seq.target:
            raise InvariantError(f"request {request.id}: {computed} tokens computed of {seq.target}")
        need = blocks_for(seq.target, m.block_size)
        missing = need - len(blocks)
        if missing > max(m.pool.available, 0):
            raise CapacityError(f"request {request.id} needs {missing} more KV blocks at {m.replica}", code="full")
        self._settle(blocks)
        table = list(blocks[:need])
        if missing > 0:
            table += m.pool.take(missing)
        elif missing < 0:
            m.pool.drop(blocks[need:], m.step, m.done)
        m.last_seq += 1
        m.seqs[seq.id] = m.adopted[seq.id] = seq
        seq.table, seq.computed = table, computed
        seq.state = SeqState.ADOPTED
        return seq.id

    def table(self, seq: int) -> tuple[int, ...]:
        """Blocks that hold its KV, in order."""
        return tuple(self._seq(seq).table)

    def computed(self, seq: int) -> int:
        """Tokens whose KV is written once every open step is done."""
        return self.state.computed_now(self._seq(seq))

    def freeze(self, seq: int) -> int | None:
        """Take a decoding sequence out of the batch and keep its blocks.

        Returns the last step that touches it; its state stands still when that step is done. None when it does not
        decode (it waits, prefills, or is about to end).
        """
        m, found = self.state, self._seq(seq)
        if m.outputs_at(found, m.step) >= found.limit:
            return None
        if found.state is SeqState.DECODE:
            m.leave_batch(found)
            m.pauses[found.id] = None
        elif found.state is SeqState.STALLED:
            del m.stalled[found]
        elif found.state is SeqState.JOINING:
            m.joins.remove(found)
        elif found.state is SeqState.FROZEN:
            return found.last
        else:
            return None
        found.state, found.leave_at = SeqState.FROZEN, 0
        m.order.observe_stop(found, m.step + 1)
        return found.last

    def thaw(self, seq: int) -> None:
        """Let a frozen sequence decode again (the transfer failed)."""
        m, found = self.state, self._seq(seq)
        if found.state is not SeqState.FROZEN:
            raise InvariantError(f"sequence {seq} is {found.state.name}, not frozen")
        found.holds = False
        found.state = SeqState.STALLED
        m.stalled[found] = None
        m.order.observe_start(found, m.step + 1, found.preemptions < m.params.preemptions_max)

    def release(self, seq: int) -> None:
        """Forget a sequence that another replica owns now."""
        m = self.state
        m.finish(self._seq(seq), FinishReason.CANCELLED, m.done)

    def hold_after_prefill(self, seq: int) -> None:
        """Prefill and sample the first token only, then freeze (P/D)."""
        found = self._seq(seq)
        if found.state not in (SeqState.WAITING, SeqState.HELD, SeqState.PREFILL):
            raise InvariantError(f"sequence {seq} is {found.state.name}, its prefill is over")
        found.holds = True
