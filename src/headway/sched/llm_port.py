"""What a WorkerNode asks of the L2 machine of an LLM replica (`sched/llm/machine.py`)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core.decisions import Decision
from headway.core.events import StepDone
from headway.core.plans import StepPlan
from headway.core.request import FinishReason, LlmRequest
from headway.core.units import Ns
from headway.sched.reporter import PrefixCache, ReplicaNumbers
from headway.sched.transfer.ports import Sequences


class Ended(Protocol):
    """A sequence that is over."""

    @property
    def seq(self) -> int: ...

    @property
    def reason(self) -> FinishReason: ...


class LlmScheduler(ReplicaNumbers, PrefixCache, Sequences, Protocol):
    """The whole machine."""

    @property
    def runnable(self) -> bool: ...

    @property
    def live(self) -> int: ...

    def add(self, request: LlmRequest, emitted: tuple[int, ...], at_ns: Ns) -> int: ...

    def stop(self, seq: int, reason: FinishReason, at_ns: Ns) -> Ended | None: ...

    def plan(self, at_ns: Ns) -> StepPlan | None: ...

    def keep_output(self, seq: int, output: Sequence[int]) -> None: ...

    def step_done(self, done: StepDone, outputs: Callable[[int], Sequence[int]] | None = None) -> Sequence[Ended]: ...

    @property
    def is_steady(self) -> bool: ...

    def steps_done(self, last: int, depth: int, took_ns: Sequence[Ns]) -> Sequence[StepPlan]: ...

    def fail(self, step: int, at_ns: Ns) -> Sequence[Ended]: ...

    def take_decisions(self) -> Sequence[Decision]: ...

    def reset_prefix_cache(self) -> object: ...

    def check_invariants(self) -> None: ...
