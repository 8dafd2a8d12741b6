"""The largest chunk whose predicted step keeps every running request inside its TPOT."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.decisions import Alternative
from headway.core.units import NS_PER_MS, Ns
from headway.cost.llm import StepCost, StepShape, pairs
from headway.sched.llm.policies._sorted import SortedSeqs
from headway.sched.llm.protocols import StepView
from headway.sched.llm.sequence import Seq


class TpotBudget:
    """Step time allowed = `fraction` of the tightest allowance among those that decode.

    An allowance is the TPOT of the SLO, or the time to the end-to-end deadline per token still to come, fixed when the
    request starts to decode; they are kept sorted, nobody is visited per step. `tokens_min` per step go
    through whatever it costs, so that prompts move. While others could use the step, one prompt takes half.
    """

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`default_tpot_ms`: for requests without SLO; None: they set no limit."""

        fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
        tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 16
        tokens: Annotated[int, msgspec.Meta(ge=1)] = 2048
        default_tpot_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None

        def __post_init__(self) -> None:
            if self.tokens_min > self.tokens:
                raise ValueError(f"tokens_min = {self.tokens_min} is above tokens = {self.tokens}")

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "TPOT and deadlines of what decodes, the belief about step times, history of the prompt"
    good_at: ClassVar[str] = "steady TPOT beside long prompts, full steps when nobody decodes"
    blind_spot: ClassVar[str] = "the TTFT of the prompts that it slows down"

    def __init__(self, params: Params, belief: StepCost | None) -> None:
        assert belief is not None  # `needs` says so
        self._params, self._belief = params, belief
        self._default_ns = None if params.default_tpot_ms is None else int(params.default_tpot_ms * NS_PER_MS)
        self._allowances = SortedSeqs()

    def limit_ns(self) -> Ns | None:
        """Time that a step may take now; None without a promise."""
        tightest = self._allowances.first(1)
        return int(tightest[0][0][0] * self._params.fraction) if tightest else None

    def count(self, view: StepView, start: int, room: int) -> int:
        """O(log room)."""
        limit, room = self.limit_ns(), min(room, self._params.tokens)
        if limit is None:
            size = room
        else:
            shape = StepShape(view.decodes, view.kv_tokens, view.prefill_tokens, view.prefill_pairs)
            size = self._belief.largest_chunk(shape, start, limit, room)
        if view.contended:
            size = -(-size // 2)
        return min(room, max(size, self._params.tokens_min - view.prefill_tokens))

    def why(self, view: StepView, start: int, room: int, count: int) -> tuple[str, tuple[Alternative, ...]] | None:
        """Worth a record when the step had room for more."""
        if count >= min(room, self._params.tokens):
            return None
        limit = self.limit_ns()
        options = tuple(
            Alternative(f"{tokens} tokens", float(self._predicted(view, start, tokens))) for tokens in (count, room)
        )
        half = ", half of it while others wait" if view.contended else ""
        return f"step may take {limit} ns by the tightest TPOT{half}; scores are predicted ns", options

    def _predicted(self, view: StepView, start: int, tokens: int) -> Ns:
        return self._belief.step_ns(
            view.decodes, view.kv_tokens, view.prefill_tokens + tokens, view.prefill_pairs + pairs(start, tokens)
        )

    def observe_decode(self, seq: Seq, at_ns: Ns, change: int) -> None:
        """Its allowance counts while it decodes."""
        if change < 0:
            self._allowances.discard(seq)
            return
        slo = seq.request.slo
        allowed = [value for value in (slo.tpot_ns or self._default_ns,) if value is not None]
        if slo.e2e_deadline_ns is not None and slo.e2e_deadline_ns > at_ns:  # a deadline that passed asks for nothing
            allowed.append((slo.e2e_deadline_ns - at_ns) // max(seq.limit - seq.outputs, 1))
        if allowed:
            self._allowances.push(seq, (min(allowed), seq.id))
