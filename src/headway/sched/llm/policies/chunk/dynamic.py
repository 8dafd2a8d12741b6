"""Chunks that shrink as history grows, so that each takes the same time."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.decisions import Alternative
from headway.core.units import Ns
from headway.cost.llm import StepCost, StepShape, pairs
from headway.sched.llm.protocols import StepView
from headway.sched.llm.sequence import Seq

_NOTHING = StepShape()


class Dynamic:
    """As many tokens as cost what `tokens` cost without history, `tokens_min` at least."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`tokens`: size of a first chunk."""

        tokens: Annotated[int, msgspec.Meta(ge=1)] = 1024
        tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 64

        def __post_init__(self) -> None:
            if self.tokens_min > self.tokens:
                raise ValueError(f"tokens_min = {self.tokens_min} is above tokens = {self.tokens}")

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "history of the prompt, the belief about attention cost"
    good_at: ClassVar[str] = "long prompts: even steps, and even stages in a pipeline"
    blind_spot: ClassVar[str] = "what decodes beside it, and any TPOT"

    def __init__(self, params: Params, belief: StepCost | None) -> None:
        assert belief is not None  # `needs` says so
        self._params, self._belief = params, belief

    def count(self, view: StepView, start: int, room: int) -> int:
        """O(log tokens)."""
        most = self._params.tokens
        limit = self._belief.step_ns(0, 0, most, pairs(0, most))
        size = self._belief.largest_chunk(_NOTHING, start, limit, min(room, most))
        return min(room, max(size, self._params.tokens_min))

    def why(self, view: StepView, start: int, room: int, count: int) -> tuple[str, tuple[Alternative, ...]] | None:
        """Worth a record when history made it smaller."""
        most = min(room, self._params.tokens)
        if count >= most:
            return None
        options = tuple(
            Alternative(f"{tokens} tokens", float(self._belief.step_ns(0, 0, tokens, pairs(start, tokens))))
            for tokens in (count, most)
        )
        return f"{start} tokens of history; scores are predicted ns", options

    def observe_decode(self, seq: Seq, at_ns: Ns, change: int) -> None:
        """Nothing to learn."""
