"""Least slack to the next deadline first."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.units import NS_PER_MS, Ns
from headway.sched.llm.policies._sorted import Key
from headway.sched.llm.policies._static import StaticOrder
from headway.sched.llm.protocols import OrderContext
from headway.sched.llm.sequence import Seq


class LeastSlack(StaticOrder):
    """slack = deadline - now - prefill time; now is the same for all, so deadline - prefill time is a fixed key.

    The deadline is that of the next token: TTFT first, after it TPOT or the end-to-end deadline. A request without any
    is treated as due `default_ms` after its arrival, so it waits, but not for ever.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`default_ms`: deadline after arrival for requests that have none."""

        default_ms: Annotated[int, msgspec.Meta(ge=1)] = 60_000

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "deadlines of the SLO, prompt length, the belief about prefill time"
    good_at: ClassVar[str] = "mixed TTFT targets at a load that can be met"
    blind_spot: ClassVar[str] = "in overload it serves what is late anyway; admission must keep that out"

    def __init__(self, params: Params, context: OrderContext) -> None:
        super().__init__(params, context)
        self._default_ns = params.default_ms * NS_PER_MS

    def _due_ns(self, seq: Seq) -> Ns:
        slo = seq.request.slo
        first = seq.arrived_ns + self._default_ns if slo.ttft_deadline_ns is None else slo.ttft_deadline_ns
        if seq.outputs and slo.tpot_ns is not None:
            return first + seq.outputs * slo.tpot_ns
        if slo.e2e_deadline_ns is not None and (seq.outputs or slo.ttft_deadline_ns is None):
            return slo.e2e_deadline_ns
        return first

    def wait_key(self, seq: Seq) -> Key:
        """Latest time to start."""
        belief = self.context.belief
        assert belief is not None  # `needs` says so
        latest = self._due_ns(seq) - belief.prefill_ns(seq.computed, seq.target - seq.computed)
        return (0 if seq.preemptions else 1, latest, seq.id)
