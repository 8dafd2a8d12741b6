"""The numbers a replica reports about its machine."""

from headway.core.decisions import Decision
from headway.core.ledger import AccountView
from headway.core.reports import KvEvents, StepCoefficients
from headway.sched.llm.audit import check_invariants
from headway.sched.llm.handoff import Lending
from headway.sched.llm.sequence import SeqState, blocks_for
from headway.sched.llm.state import MachineState


class Reporting(Lending):
    """Read-only, but for what is taken."""

    def __init__(self, state: MachineState) -> None:
        super().__init__(state)
        name = f"replica/{state.replica}"
        self._account_names = f"{name}/kv_blocks", f"{name}/kv_cached", f"{name}/step_tokens"

    @property
    def runnable(self) -> bool:
        """Something could run now or wants a step; `plan` may still find that it must wait."""
        m = self.state
        return bool(m.decodes or m.joins or m.partial or m.stalled or m.waiting or m.adopted or m.swap_outs)

    @property
    def is_steady(self) -> bool:
        """Some decode, and nobody enters, leaves or waits."""
        return self.state.is_steady

    @property
    def live(self) -> int:
        """Sequences that are not over."""
        return len(self.state.seqs)

    @property
    def waiting(self) -> int:
        return self.state.waiting

    @property
    def running(self) -> int:
        return self.state.running

    @property
    def waiting_prefill_tokens(self) -> int:
        """Prompt tokens queued or in partly computed prompts. O(partly computed)."""
        m = self.state
        partial = sum([seq.target - seq.computed for seq in m.partial]) if m.partial else 0
        return m.waiting_tokens + partial

    @property
    def running_kv_tokens(self) -> int:
        """Tokens of KV that running sequences hold. O(those that do not decode)."""
        m = self.state
        held = m.kv_base + m.decodes * (m.step + 1)
        if m.partial or m.joins or m.stalled:
            held += sum(seq.computed for group in (m.partial, m.joins, m.stalled) for seq in group)
        return held

    @property
    def kv_blocks_free(self) -> int:
        """Blocks that an admission could take now, cached ones included."""
        return max(self.state.pool.available, 0)

    @property
    def blocked_tokens(self) -> int:
        """Tokens of KV that the head of the queue needs, if it did not find them free."""
        known = self.state.blocked
        if known is None or known.head.state is not SeqState.WAITING:
            return 0
        return blocks_for(known.head.target, self.state.block_size) * self.state.block_size

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.state.block_size

    @property
    def step_cost(self) -> StepCoefficients | None:
        """What its steps are believed to cost, once some were measured; before that it would only tell a prior."""
        belief = self.state.belief
        is_known = belief is not None and (belief.observed > 0 or not belief.params.learn)
        return belief.coefficients if belief is not None and is_known else None

    def counters(self) -> dict[str, int]:
        """Monotonic counts since the start, by name in order."""
        m = self.state
        return {
            "generated_tokens": m.generated_tokens,
            "preemptions": m.preemptions,
            "prefix_hit_tokens": m.prefix_hits,
            "prefix_query_tokens": m.prefix_queries,
            "prompt_tokens": m.prompt_tokens,
            "recomputed_tokens": m.recomputed_tokens,
            "stalls": m.stalls,
            "steps": m.step,
            "swaps": m.swaps,
        }

    def accounts(self) -> tuple[AccountView, ...]:
        """KV blocks, cached blocks and step tokens as ledger accounts (SPEC L-2)."""
        m = self.state
        owner, pool, budget = m.replica, m.pool, m.params.step_tokens
        blocks, cached, tokens = self._account_names
        views = [
            AccountView(blocks, owner, "blocks", "level", pool.size, pool.reserved, pool.used),
            AccountView(cached, owner, "blocks", "level", pool.size, 0, pool.cached, cache=True),
            AccountView(tokens, owner, "tokens", "level", budget, 0, m.decodes),
        ]
        if m.slots.size:
            slots = m.slots
            views.append(
                AccountView(f"replica/{owner}/host_slots", owner, "blocks", "level", slots.size, 0, slots.used)
            )
        return tuple(views)

    def take_kv_events(self, *, everything: bool) -> KvEvents:
        """What entered and left the prefix index since the last call; `everything`: what it holds."""
        pool = self.state.pool
        return pool.log.take(pool.index.key_of, everything=everything)

    def take_decisions(self) -> list[Decision]:
        """Decisions since the last call; none in steady decode (SPEC L-3)."""
        if not self.state.decisions:
            return []
        out, self.state.decisions = self.state.decisions, []
        return out

    def reset_prefix_cache(self) -> None:
        """Nothing computed before now is ever hit again."""
        self.state.pool.forget_cached()

    def check_invariants(self) -> None:
        """Raise InvariantError unless everything adds up; for tests and simulation."""
        check_invariants(self.state)
