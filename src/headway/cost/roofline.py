"""The time of an LLM step from the catalogue: a roofline with collectives, pipeline, experts and overlap (REFERENCE 2).

t = max(linear products, weights) + max(experts, hit experts) + max(attention, KV) + collectives + t0
"""

from collections.abc import Sequence

from headway.cost.deployment import Deployment, TwoBatch, check
from headway.cost.llm import StepShape
from headway.cost.roofline_terms import terms_of, wires_of


class RooflineModel:
    """A `cost.step.StepModel` of one replica. Pure and without noise; constants are worked out once."""

    def __init__(self, deployment: Deployment) -> None:
        """Raises ConfigError for a layout or number type that cannot work."""
        self.deployment = check(deployment)
        layout, reach = deployment.layout, deployment.efficiency
        self._terms, self._wires = terms_of(deployment), wires_of(deployment)
        self._dp, self._cp, self._pp = layout.dp, layout.cp, layout.pp
        self._microbatches = layout.microbatches or layout.pp
        self._overhead = reach.overhead_ns
        self._host_base, self._host_row = reach.host_base_ns, reach.host_row_ns
        self._two_batch = deployment.two_batch

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

    def _rank_ns(self, work: tuple[float, float, float, float, float, float], everyone: float) -> float:
        if self._pp == 1 and self._microbatches == 1:
            return self._overlapped(work, everyone) + self._overhead
        decodes, kv, prefill, pairs, chunks, context = work
        tokens = decodes + prefill
        m = min(self._microbatches, tokens) or 1
        part = (decodes / m, kv / m, prefill / m, pairs / m, chunks / m, context / m)
        stage = self._overlapped(part, everyone / m)
        if self._pp > 1:
            stage += self._wires.hop.ns(tokens / m)
        return (m + self._pp - 1) * stage + self._overhead  # bubble (p - 1) / (m + p - 1)

    def _overlapped(self, work: tuple[float, float, float, float, float, float], everyone: float) -> float:
        """One forward of a stage, its communication exposed or hidden behind the other half."""
        if self._two_batch is None:
            compute, wires = self._stage(work, everyone)
            return compute + wires
        a, b, c, d, e, f = work
        compute, wires = self._stage((a / 2, b / 2, c / 2, d / 2, e / 2, f / 2), everyone / 2)
        return two_batch_ns(compute, wires, self._two_batch, self.deployment.model.layers)

    def _stage(self, work: tuple[float, float, float, float, float, float], everyone: float) -> tuple[float, float]:
        """(compute, communication) of one forward."""
        decodes, kv, prefill, pairs, chunks, context = work
        t, w, cp = self._terms, self._wires, self._cp
        wires = 0.0
        if t.window:  # windowed layers look back at most so far; contexts of a step count as equal
            far, g = t.window, t.global_share
            kv = g * kv + (1 - g) * min(kv, decodes * far)
            pairs = g * pairs + (1 - g) * min(pairs, prefill * far)
            context = g * context + (1 - g) * min(context, chunks * far + prefill)
        if cp == 1:
            tokens = decodes + prefill
            attention = t.decode_pair * kv + t.prefill_pair * pairs
            memory = t.kv * (kv + context)
            compute = attention if attention > memory else memory
        else:
            tokens = decodes + prefill / cp
            attention, memory = t.decode_pair * kv / cp, t.kv * kv / cp
            compute = attention if attention > memory else memory
            if prefill:  # ring: every rank's queries meet every rank's keys while the next keys arrive
                chunk = max(t.prefill_pair * pairs / (cp * cp), t.kv * context / cp)
                passed = w.ring.ns(context / cp)
                compute += cp * chunk
                wires += (cp - 1) * max(0.0, passed - chunk)
            if decodes:
                wires += w.merge.ns(decodes)
        rows = decodes + (chunks if chunks or not prefill else 1)
        linear = t.token * tokens + t.sampled * rows
        if t.past_token and context > prefill:
            linear += t.past_token * (context - prefill) / cp
        compute += linear if linear > t.weights else t.weights
        if t.miss:
            hit = t.expert_hit * (1 - t.miss**everyone)
            product = t.expert_token * everyone
            compute += product if product > hit else hit
        if w.reduces:
            wires += w.reduces * w.reduce.ns(tokens)
        if w.expert_layers:
            wires += w.expert_layers * w.experts.ns(tokens)
        return compute, wires


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
