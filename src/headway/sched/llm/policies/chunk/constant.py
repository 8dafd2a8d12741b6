"""A fixed number of prompt tokens per sequence and step."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.decisions import Alternative
from headway.core.units import Ns
from headway.cost.llm import StepCost
from headway.sched.llm.protocols import StepView
from headway.sched.llm.sequence import Seq


class Constant:
    """`tokens` per chunk, as many sequences as the step has room for."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`tokens`: size of a chunk; at most `step_tokens`."""

        tokens: Annotated[int, msgspec.Meta(ge=1)] = 512

    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "nothing"
    good_at: ClassVar[str] = "throughput; a known upper bound of the work in a step"
    blind_spot: ClassVar[str] = "a chunk late in a long prompt takes longer, and no TPOT is looked at"

    def __init__(self, params: Params, belief: StepCost | None) -> None:
        self._tokens = params.tokens

    def count(self, view: StepView, start: int, room: int) -> int:
        """The chunk, or what is left."""
        return min(self._tokens, room)

    def why(self, view: StepView, start: int, room: int, count: int) -> tuple[str, tuple[Alternative, ...]] | None:
        """A constant decides nothing."""
        return None

    def observe_decode(self, seq: Seq, at_ns: Ns, change: int) -> None:
        """Nothing to learn."""
