"""The LLM machine (SPEC B): what one replica computes in its next step.

Events in (`add`, `stop`, `step_done`), plans out (`plan`). A plan names what changed; its cost is that of the changes,
not of the batch (SPEC B9). Up to `async_depth` plans are open: plan N+1 is made while N runs, with placeholders for the
tokens that N will sample.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headway.core.errors import InvariantError
from headway.core.events import StepDone
from headway.core.ids import NodeId
from headway.core.plans import Join, StepKind, StepPlan, Swap
from headway.core.ports import ModelLimits
from headway.core.request import FinishReason, LlmRequest
from headway.core.units import Ns
from headway.cost.llm import StepCost, StepShape
from headway.sched.llm import ahead
from headway.sched.llm import params as settings
from headway.sched.llm.admission import admit, displace, find_hits
from headway.sched.llm.ahead import LESSONS_EAGER, STEADY_SAMPLE
from headway.sched.llm.counting import CountingPool
from headway.sched.llm.failure import void_open_steps
from headway.sched.llm.grants import grant
from headway.sched.llm.intake import new_seq
from headway.sched.llm.params import LlmParams
from headway.sched.llm.pool import BlockPool
from headway.sched.llm.prefill import advance_partials, cache_output, in_turn, seat_adopted, split_at_head
from headway.sched.llm.records import record
from headway.sched.llm.reporting import Reporting
from headway.sched.llm.sequence import DECODE, DRAINING, FROZEN, HELD, JOINING, STALLED, WAITING, Seq
from headway.sched.llm.state import Draft, Ended, MachineState
from headway.sched.registry import select

_ENDING: Final = (JOINING, DECODE, DRAINING)
_SPEAKING: Final = (JOINING, DECODE, STALLED, FROZEN)
_ALONE: Final = NodeId("rep-0")
PREFILL_SAMPLE: Final = 4

Outputs = Callable[[int], Sequence[int]]


class _Prefixes:
    """PrefixView of the machine, for orders."""

    def __init__(self, state: MachineState) -> None:
        self._state = state

    def hit_tokens(self, seq: Seq, step: int) -> int:
        if seq.slots:
            return seq.computed
        return len(find_hits(self._state, seq, step)) * self._state.block_size


class _Context:
    """OrderContext of the machine."""

    def __init__(self, state: MachineState) -> None:
        self.belief, self.prefixes = state.belief, _Prefixes(state)


class LlmMachine(Reporting):
    """L2 machine of one LLM replica. Callers hold a step credit per open plan."""

    def __init__(
        self,
        params: LlmParams,
        limits: ModelLimits,
        belief: StepCost | None,
        replica: NodeId = _ALONE,
    ) -> None:
        settings.check(params, limits, belief)
        counting = params.pool == "counting"
        pool = CountingPool(limits.kv_blocks) if counting else BlockPool(limits.kv_blocks, limits.block_size)
        super().__init__(MachineState(params, limits, belief, pool, replica))
        m = self.state
        provides = settings.provides(params, belief)
        order, order_params = select(settings.ORDERS, "order", params.order, provides)
        chunk, chunk_params = select(settings.CHUNKS, "chunk", params.chunk, provides)
        m.order = order(order_params, _Context(m))
        m.chunker = chunk(chunk_params, belief)

    # Events

    def add(self, request: LlmRequest, emitted: tuple[int, ...], at_ns: Ns) -> int:  # noqa: ARG002  as every event
        """Queue a request; returns its sequence number. `emitted` tokens were streamed elsewhere before.

        Raises RequestError (`unservable`) for what can never fit.
        """
        m = self.state
        seq = new_seq(m, m.last_seq + 1, request, emitted)
        m.last_seq += 1
        m.seqs[seq.id] = seq
        m.queue(seq)
        return seq.id

    def await_input(self, seq: int) -> None:
        """Keep a queued sequence out of the order until `ready`: its encoder output is not there yet (SPEC B10)."""
        m, found = self.state, self._seq(seq)
        if found.state is not WAITING:
            raise InvariantError(f"sequence {seq} is {found.state.name} and waits for no input")
        m.unqueue(found)
        found.state = HELD

    def ready(self, seq: int) -> None:
        """The input is there; the sequence queues. A sequence that is over or queued already changes nothing."""
        found = self.state.seqs.get(seq)
        if found is not None and found.state is HELD:
            self.state.queue(found)

    def sample_after_host(self, seq: int) -> None:
        """From now on each row of `seq` samples after the host has its previous token (SPEC B11)."""
        self.state.guided[self._seq(seq)] = None

    def stop(self, seq: int, reason: FinishReason, at_ns: Ns) -> Ended | None:  # noqa: ARG002  as every event
        """End a sequence now; its blocks return behind the fence. None when it was over already."""
        found = self.state.seqs.get(seq)
        return None if found is None else self.state.finish(found, reason, self.state.done)

    def keep_output(self, seq: int, output: Sequence[int]) -> None:
        """Offer what `seq` has said so far to the prefix cache: it is about to be stopped, and may be taken up again.

        `output` is what steps that are done have sampled; committed steps write the KV of all but its last token.
        """
        m, found = self.state, self.state.seqs.get(seq)
        if found is not None and found.state in _SPEAKING:
            cache_output(m, found, output, m.step)

    def step_done(self, done: StepDone, outputs: Outputs | None = None) -> list[Ended]:
        """Fold in the oldest open step: what it stopped, and who reached a length limit with it.

        `outputs`: everything that a sequence has sampled so far, this step included; what ends by length is cached.
        """
        m, step = self.state, done.step
        if step != m.done + 1 or step > m.step:
            raise InvariantError(f"step {step} is done, the oldest open step is {m.done + 1} of {m.step}")
        ended = []
        for stopped in done.stopped:
            seq = m.seqs.get(stopped.seq)
            if seq is None:
                continue
            if stopped.output is not None and seq.table:
                cache_output(m, seq, stopped.output, step)
            ended.append(m.finish(seq, FinishReason.STOP, step))
        due = m.calendar.pop(step + 1, None)
        if due is not None:
            for number in due:
                seq = m.seqs.get(number)
                if seq is not None and seq.leave_at == step + 1 and seq.state in _ENDING:
                    if outputs is not None:
                        cache_output(m, seq, outputs(number), step)
                    ended.append(m.finish(seq, FinishReason.LENGTH, step))
        m.done = step
        if m.pool.fences:
            m.pool.release(step)
        if m.slots.fences:
            m.slots.release(step)
        shape = m.open_shapes.pop(step, None) if m.open_shapes else None
        if shape is not None and m.belief is not None:
            m.belief.observe(shape, done.timing.done_ns - done.timing.started_ns)
        return ended

    def fail(self, step: int, at_ns: Ns) -> list[Ended]:
        """Step `step` and every one after it are void, and so is all KV. Plans go on after the last number used.

        Everybody waits again with the tokens of steps that were done before. Returns sequences that end by it: none.
        """
        m = self.state
        if not m.done < step <= m.step:
            raise InvariantError(f"step {step} failed, open are {m.done + 1} to {m.step}")
        if m.params.decisions:
            record(m, "cache", "preempt", "all", f"step {step} failed in the engine", at_ns)
        return void_open_steps(m)

    # Plans

    def plan(self, at_ns: Ns) -> StepPlan | None:
        """Plan the next step; None when nothing can run now."""
        m = self.state
        if m.step - m.done >= m.params.async_depth:
            raise InvariantError(f"{m.step - m.done} steps are open, async_depth is {m.params.async_depth}")
        step, m.at_ns = m.step + 1, at_ns
        if not (m.joins or m.partial) and m.is_quiet and step not in m.calendar and not m.may_let_in:
            bucket = m.wheel[step % m.block_size]
            room = m.pool.available - len(bucket)
            if room >= 0:
                return ahead.commit_steady(m, step, bucket, room)
        draft = Draft(step, at_ns)
        if step in m.calendar:
            self._drain_due(step)
        if m.joins:
            for seq in m.joins:
                if seq.state is JOINING:
                    draft.entered.append((seq, Join(seq.id, -1, seq.last)))
                    m.enter(seq, step)
            m.joins = []
        grant(m, draft)
        if m.waiting and draft.calm and m.order.displaces and not m.stalled:
            displace(m, draft)
        draft.decodes = decodes = m.decodes
        draft.kv_tokens = m.kv_base + decodes * (step + 1)
        if (m.partial or m.adopted or m.may_admit) and (m.params.overlap_prefills or not self._must_not_overlap()):
            self._prefill(draft)
        if not decodes and not draft.chunks and not m.swap_outs:
            # Victims made room, and no open step will end and ask again: this plan is the occasion to use it.
            return None if draft.calm or m.step > m.done else self.plan(at_ns)
        return self._commit(draft)

    def _prefill(self, draft: Draft) -> None:
        m = self.state
        if m.adopted:
            seat_adopted(m)
        may_admit = draft.calm and not m.stalled
        if not m.order.takes_turns:
            if m.partial:
                advance_partials(m, draft, list(m.partial))
            if may_admit and m.may_admit:
                admit(m, draft, [])
            return
        behind = in_turn(m)
        while True:
            before, behind = split_at_head(m, behind, draft.step)
            draft.behind = len(behind)
            advance_partials(m, draft, before)
            if not (may_admit and m.waiting and admit(m, draft, behind)):
                break
        draft.behind = 0
        if behind:
            advance_partials(m, draft, behind)

    def _drain_due(self, step: int) -> None:
        """Those whose last token an open step samples leave the batch."""
        m = self.state
        for number in m.calendar[step]:
            seq = m.seqs.get(number)
            if seq is not None and seq.leave_at == step and seq.state in (JOINING, DECODE):
                m.drain(seq)

    def _must_not_overlap(self) -> bool:
        """A pure prefill would be open behind another one, which some configurations forbid."""
        m = self.state
        return not m.decodes and m.step > m.done and m.last_kind == "prefill"

    def steps_done(self, last: int, depth: int, took_ns: Sequence[Ns]) -> list[StepPlan]:
        """Fold in what was run ahead (`ahead.steps_done`)."""
        return ahead.steps_done(self.state, last, depth, took_ns)

    def _commit(self, draft: Draft) -> StepPlan:
        m, step, decodes, kv_tokens = self.state, draft.step, draft.decodes, draft.kv_tokens
        belief, chunks = m.belief, draft.chunks
        sample = PREFILL_SAMPLE if chunks else STEADY_SAMPLE
        if belief is not None and not draft.swap_in and (belief.observed < LESSONS_EAGER or step % sample == 0):
            m.open_shapes[step] = StepShape(decodes, kv_tokens, draft.prefill_tokens, draft.prefill_pairs)
        kind: StepKind = "decode" if decodes else "dummy"
        if chunks:
            kind = "mixed" if decodes else "prefill"
        m.step, m.last_kind = step, kind
        leaves, grants = m.leaves, draft.grants
        if leaves:
            m.leaves = []
        if not draft.calm:  # a victim may have been granted a block before it had to give way
            grants = tuple([g for g in grants if g[0] in m.seqs and m.seqs[g[0]].state is DECODE])
        joins = tuple([join for seq, join in draft.entered if seq.state is DECODE]) if draft.entered else ()
        after: tuple[tuple[int, int], ...] = ()
        if m.guided:
            after = tuple([(seq.id, step - 1) for seq in m.guided if seq.state is DECODE and seq.first < step])
        preempts: tuple[int, ...] = ()
        pauses: tuple[int, ...] = ()
        swap_outs: tuple[Swap, ...] = ()
        if m.preempts or m.pauses or m.swap_outs:
            preempts, pauses, swap_outs = tuple(m.preempts), tuple(m.pauses), tuple(m.swap_outs)
            m.preempts, m.pauses, m.swap_outs = {}, {}, []
        # By place: sixteen names take 1.5 us to find, the places nothing.
        return StepPlan(
            step,
            m.done,
            kind,
            tuple(leaves),
            preempts,
            pauses,
            swap_outs,
            tuple(draft.new),
            tuple(draft.swap_in),
            joins,
            grants,
            tuple(chunks),
            after,
            (),  # it waits for no layer
            decodes,
            kv_tokens,
            draft.prefill_tokens,
        )
