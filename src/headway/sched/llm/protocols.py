"""What order and chunk policies implement, and the little of the machine that they may read.

Queries (all but `observe_*`) write nothing; only `observe_*` methods change a policy's state.
`step` is always the step being planned: the service of all earlier steps counts.
"""

from typing import ClassVar, Final, Literal, Protocol

from headway.core.decisions import Alternative
from headway.core.units import Ns
from headway.cost.llm import StepCost
from headway.sched.llm.sequence import Seq

VICTIMS_MAX: Final = 8
HeadDependsOn = Literal["queue", "cache", "step"]  # what may change the head: arrivals and leavings, evictions, time


class OrderPolicy(Protocol):
    """Who is next, and who gives way."""

    displaces: ClassVar[bool]  # a waiting request may take the place of a running one
    competes: ClassVar[bool]  # its pick can differ from first come, first served
    takes_turns: ClassVar[bool]  # prompt tokens of a step go by this order too, not only by admission
    head_depends_on: ClassVar[HeadDependsOn]

    def head(self, step: int) -> Seq | None:
        """The request to admit next; nobody is admitted past it."""
        ...

    def victims(self, step: int) -> list[Seq]:
        """Up to VICTIMS_MAX of the running that may be preempted, first choice first, all of the least urgent kind."""
        ...

    def outranks(self, head: Seq, running: Seq) -> bool:
        """True when `head` may displace `running`."""
        ...

    def turn(self, seq: Seq) -> int:
        """Where prompts take turns: the smallest of those that are partly computed goes on first."""
        ...

    def overtakes(self, head: Seq, partial: Seq) -> bool:
        """Where prompts take turns: True when `head` is computed before `partial` goes on."""
        ...

    def score(self, seq: Seq, step: int) -> float:
        """What `head` compares, for the record; lower is sooner."""
        ...

    def runners_up(self, step: int) -> list[Seq]:
        """The head and a few that it was preferred to, for the record."""
        ...

    def observe_wait(self, seq: Seq, step: int) -> None: ...

    def observe_unwait(self, seq: Seq, step: int) -> None: ...

    def observe_start(self, seq: Seq, step: int, victim: bool) -> None:
        """`seq` holds blocks from now on; `victim`: it may be preempted."""
        ...

    def observe_stop(self, seq: Seq, step: int) -> None: ...

    def observe_decode(self, seq: Seq, step: int, change: int) -> None:
        """`seq` begins (+1) or ends (-1) to decode one token per step."""
        ...

    def observe_prefill(self, seq: Seq, step: int, tokens: int) -> None: ...


class StepView(Protocol):
    """The step being planned, as chunk policies see it."""

    @property
    def at_ns(self) -> Ns: ...

    @property
    def decodes(self) -> int: ...

    @property
    def kv_tokens(self) -> int:
        """Context of all decodes in this step."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Planned so far in this step."""
        ...

    @property
    def prefill_pairs(self) -> int:
        """Query-key pairs of the chunks planned so far."""
        ...

    @property
    def contended(self) -> bool:
        """Somebody else could use this step for its prompt."""
        ...


class ChunkPolicy(Protocol):
    """How many prompt tokens of one sequence this step computes."""

    def count(self, view: StepView, start: int, room: int) -> int:
        """Tokens to prefill after `start` tokens of history, at most `room`; 0: no prefill more in this step."""
        ...

    def why(self, view: StepView, start: int, room: int, count: int) -> tuple[str, tuple[Alternative, ...]] | None:
        """Reason and alternatives when `count`, which is below `room`, is worth a record, else None."""
        ...

    def observe_decode(self, seq: Seq, at_ns: Ns, change: int) -> None: ...


class PrefixView(Protocol):
    """Prefix hits, for orders that look at them."""

    def hit_tokens(self, seq: Seq, step: int) -> int: ...


class OrderContext(Protocol):
    """What an order may be built with."""

    @property
    def belief(self) -> StepCost | None: ...

    @property
    def prefixes(self) -> PrefixView: ...
