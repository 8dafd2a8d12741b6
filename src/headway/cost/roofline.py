"""The time of an LLM step from the catalogue: a roofline with collectives, pipeline, experts and overlap (REFERENCE 2).

t = max(linear products, weights) + max(experts, hit experts) + max(attention, KV) + collectives + t0
"""

from collections.abc import Sequence
from typing import TypeAlias

from headway.cost.deployment import Deployment, TwoBatch, check
from headway.cost.llm import StepShape
from headway.cost.roofline_terms import terms_of, wires_of

Work: TypeAlias = tuple[float, float, float, float, float, float]  # decodes, KV, prefill, pairs, chunks, context


class RooflineModel:
    """A `cost.step.StepModel` of one replica. Pure and without noise; constants are worked out once."""

    def __init__(self, deployment: Deployment) -> None:
        """Raises ConfigError for a layout or number type that cannot work."""
        self.deployment = check(deployment)
        layout, reach = deployment.layout, deployment.efficiency
        self._terms, self._wires = terms_of(deployment), wires_of(deployment)
        self._dp, self._cp, self._pp = layout.dp, layout.cp, layout.pp
        self._microbatches, self._is_filled = layout.microbatches or layout.pp, layout.is_filled
        self._overhead, self._row = reach.overhead_ns, reach.row_ns
        self._host_base, self._host_row = reach.host_base_ns, reach.host_row_ns
        self._two_batch = deployment.two_batch
        self._stage_layers = -(-deployment.model.layers // layout.pp)
        self._is_single = self._microbatches == layout.pp == layout.dp == 1 and self._two_batch is None

    def host_ns(self, rows: int) -> float:
        """Host time between steps for so many decodes and chunks."""
        return self._host_base + self._host_row * rows

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step of the whole replica: the fullest attention rank, every stage, all microbatches."""
        decodes, chunks = shape.decodes, shape.chunks
        kv: float = shape.kv_tokens
        prefill: float = shape.prefill_tokens
        pairs: float = shape.prefill_pairs
        context: float = shape.chunk_context
        everyone = decodes + prefill
        if self._is_single:
            compute, wires = self._forward((decodes, kv, prefill, pairs, chunks, context), everyone)
            return compute + wires + self._overhead + self._row * (decodes + chunks)
        if self._dp > 1:
            if decodes:
                rows = -(-decodes // self._dp)
                kv, decodes = kv * rows / decodes, rows
            if chunks:
                most = -(-chunks // self._dp)
                share = most / chunks
                prefill, pairs, context, chunks = prefill * share, pairs * share, context * share, most
        return self._rank_ns((decodes, kv, prefill, pairs, chunks, context), everyone)

    def ranks_ns(self, shapes: Sequence[StepShape]) -> float:
        """Device time when the attention ranks hold these shapes: the slowest sets it, idle ones run a dummy forward.

        Every layer's experts see the tokens of all ranks.
        """
        everyone = sum(shape.decodes + shape.prefill_tokens for shape in shapes)
        return max(
            self._rank_ns(
                (s.decodes, s.kv_tokens, s.prefill_tokens, s.prefill_pairs, s.chunks, s.chunk_context), everyone
            )
            for s in shapes
        )

    def _rank_ns(self, work: Work, everyone: float) -> float:
        """One attention rank: its microbatches through the stages, communication exposed or behind the other half."""
        m = max(min(self._microbatches, work[0] + work[2]), 1)
        halves = 2 if self._two_batch is not None else 1
        a, b, c, d, e, f = work
        n = m * halves
        compute, wires = self._forward((a / n, b / n, c / n, d / n, e / n, f / n), everyone / n)
        if self._two_batch is not None:
            stage = two_batch_ns(compute, wires, self._two_batch, self._stage_layers)
        else:
            stage = compute + wires
        if self._pp > 1:
            stage += self._wires.hop.ns((a + c) / m)
        # Filled: a microbatch's next token waits for its own way through, or for the others' turns. Else a bubble of
        # (p - 1) / (m + p - 1).
        turns = max(m, self._pp) if self._is_filled else m + self._pp - 1
        return turns * stage + self._overhead + self._row * (a + e)

    def _forward(self, work: Work, everyone: float) -> tuple[float, float]:
        """(compute, communication) of one forward of a stage. Called for every simulated step."""
        decodes, kv, prefill, pairs, chunks, context = work
        t, wires = self._terms, 0.0
        if t.window:  # windowed layers look back at most so far; contexts of a step count as equal
            far, g = t.window, t.global_share
            kv = g * kv + (1 - g) * min(kv, decodes * far)
            pairs = g * pairs + (1 - g) * min(pairs, prefill * far)
            context = g * context + (1 - g) * min(context, chunks * far + prefill)
        tokens = decodes + prefill
        if self._cp == 1:
            compute = t.decode_pair * kv + t.prefill_pair * pairs
            memory = t.kv * (kv + context)
            if memory > compute:
                compute = memory
        else:
            spread = decodes + prefill / self._cp
            everyone, tokens = everyone * spread / (tokens or 1.0), spread
            compute, wires = self._context_parallel(decodes, kv, prefill, pairs, context)
        linear = t.token * tokens + t.sampled * (decodes + (chunks or (1 if prefill else 0)))
        if context > prefill:
            linear += t.past_token * (context - prefill) / self._cp
        compute += linear if linear > t.weights else t.weights
        if t.miss:
            hit = t.expert_hit * (1 - t.miss**everyone)
            product = t.expert_token * everyone
            compute += product if product > hit else hit
        w = self._wires
        if w.reduces:
            ns, floor = w.reduce.fixed_ns + w.reduce.per_byte_ns * tokens, w.reduce.floor_ns
            wires += w.reduces * (ns if ns > floor else floor)
        if w.expert_layers:
            each = w.experts.fixed_ns + w.experts.per_byte_ns * decodes + w.prompts.per_byte_ns * (tokens - decodes)
            wires += w.expert_layers * max(w.experts.floor_ns, each)
        return compute, wires

    def _context_parallel(
        self, decodes: float, kv: float, prefill: float, pairs: float, context: float
    ) -> tuple[float, float]:
        """Attention over cp ranks and what it exposes of its communication.

        Prompts: every rank's queries meet every rank's keys while the next keys arrive, (cp - 1) max(attention, copy)
        + attention. Decodes: every rank reads its part of the cache, and partial results are merged in each layer.
        """
        t, w, cp = self._terms, self._wires, self._cp
        attention, wires = max(t.decode_pair * kv, t.kv * kv) / cp, 0.0
        if prefill:
            chunk = max(t.prefill_pair * pairs / cp, t.kv * context) / cp
            attention += cp * chunk
            wires += (cp - 1) * max(0.0, w.ring.ns(context / cp) - chunk)
        if decodes:
            wires += w.merge.ns(decodes)
        return attention, wires


def contended_ns(own_ns: float, other_ns: float, slowdown: float) -> float:
    """T' = T (1 + c min(1, T_other / T)): work runs slower while other work runs beside it."""
    return own_ns + slowdown * min(own_ns, other_ns)


def overlapped_ns(a_ns: float, b_ns: float, slow_a: float, slow_b: float, sync_ns: float) -> float:
    """Two pieces of work at once: max(T'_A, T'_B) + t_sync."""
    return max(contended_ns(a_ns, b_ns, slow_a), contended_ns(b_ns, a_ns, slow_b)) + sync_ns


def two_batch_ns(compute_ns: float, network_ns: float, two_batch: TwoBatch, layers: int) -> float:
    """Two halves in turns, given C(n/2) and M(n/2) of one forward.

    In every phase one half computes and the other communicates; the first computes alone, the last communicates alone.
    """
    phase = overlapped_ns(compute_ns, network_ns, two_batch.slow_compute, two_batch.slow_network, 0.0)
    return 2 * phase + (compute_ns + network_ns) / layers + 2 * two_batch.sync_ns
