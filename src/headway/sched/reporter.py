"""When a replica reports, and what: on change, at most once per interval, numbered (ARCHITECTURE, Nodes)."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from headway.core.decisions import Decision
from headway.core.effects import Effect, Send, WakeAt
from headway.core.ids import NodeId, TimerId
from headway.core.ledger import AccountView
from headway.core.messages import Report
from headway.core.reports import (
    DenoiseAbilities,
    DenoiseCoefficients,
    DenoiseMemory,
    KvEvents,
    PreparationFailure,
    ReplicaReport,
    ShapePreparation,
    StepCoefficients,
    WarmShape,
)
from headway.core.units import NS_PER_S, Ns
from headway.cost.llm import MeasuredStep

REPORT_TIMER: Final = TimerId("report")
SMOOTHING: Final = 0.9  # weight of the past in the learned step time, per step
RATE_MEMORY: Final = 32_768  # prompt tokens after which what was learned of the rate weighs a third


class Rates:
    """What a replica learns about itself: step time, and prompt tokens per second while its queue is served."""

    def __init__(self) -> None:
        self.step_ns: Ns = 0
        self.steps_ns: Ns = 0  # of all steps
        self.plan_ns: Ns = 0
        self.rows = self.padded_rows = 0  # of all steps, the latter without work
        self._tokens = self._busy_ns = 0.0  # both weighted by the tokens of their step
        self._stalled_ns: Ns = 0  # of steps that served nothing of the queue, since one did

    @property
    def prefill_tokens_per_s(self) -> float:
        """0 until the first prefill."""
        return self._tokens / self._busy_ns * NS_PER_S if self._busy_ns > 0 else 0.0

    def totals(self) -> dict[str, int]:
        """Counters for reports."""
        return {"step_ns": self.steps_ns, "step_rows": self.rows, "step_padded_rows": self.padded_rows}

    def begin(self, steps: Sequence[MeasuredStep]) -> None:
        """Take what a warm-up has measured; it counts for none of the totals."""
        for step in steps:
            if step.shape.prefill_tokens:
                self.served(step.shape.prefill_tokens, step.took_ns)
            else:
                self.step_ns = step.took_ns

    def step(self, step_ns: Ns, plan_ns: Ns) -> None:
        """Smooth the times of one step."""
        self.steps_ns += step_ns
        keep = SMOOTHING if self.step_ns else 0.0
        self.step_ns = round(keep * self.step_ns + (1 - keep) * step_ns)
        self.plan_ns = round(keep * self.plan_ns + (1 - keep) * plan_ns)

    def served(self, tokens: int, took_ns: Ns) -> None:
        """`tokens` of prompts left the queue in `took_ns`; call it for steps with prefill or with a queue.

        Each step weighs as many tokens as it served: the rate is what a token of a queue meets. A mean over steps would
        call a replica slow because its last prompts were cached but for a few tokens, and a router that believes it
        sends nothing that could teach it better (measured: attainment 0.82 in place of 0.95 at the same load).
        """
        if not tokens:
            self._stalled_ns += took_ns
            return
        keep = RATE_MEMORY / (RATE_MEMORY + tokens)
        self._tokens = keep * self._tokens + tokens * tokens
        self._busy_ns = keep * self._busy_ns + tokens * (took_ns + self._stalled_ns)
        self._stalled_ns = 0


class ReplicaNumbers(Protocol):
    """What reports are made of, LLM and diffusion alike."""

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    @property
    def waiting_prefill_tokens(self) -> int: ...

    @property
    def running_kv_tokens(self) -> int: ...

    @property
    def kv_blocks_free(self) -> int: ...

    @property
    def blocked_tokens(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def step_cost(self) -> StepCoefficients | None: ...

    def counters(self) -> Mapping[str, int]: ...

    def accounts(self) -> Sequence[AccountView]: ...


class PrefixCache(Protocol):
    """The prefix cache of an LLM replica."""

    def take_kv_events(self, *, everything: bool) -> KvEvents:
        """What entered and left since the last call; `everything`: what is there."""
        ...


class DenoiseQueue(Protocol):
    """The work of a diffusion replica."""

    @property
    def denoise_cost(self) -> DenoiseCoefficients | None: ...

    @property
    def queued_work_ns(self) -> Ns: ...

    @property
    def pixels(self) -> tuple[int, int | None]: ...


class Numbers(msgspec.Struct, frozen=True):
    """One look at a replica."""

    machine: ReplicaNumbers
    rates: Rates
    kv_blocks: int
    is_draining: bool
    cache: PrefixCache | None = None
    denoise: DenoiseQueue | None = None
    memory: DenoiseMemory | None = None  # what work of a diffusion replica holds
    warm: tuple[WarmShape, ...] | None = None  # what has run there
    refuses_new: bool = False  # and it takes nothing else
    preparing: tuple[ShapePreparation, ...] = ()  # what it runs, or is to run, as work of its own
    unprepared: tuple[PreparationFailure, ...] = ()  # what of that failed


class Identity(msgspec.Struct, frozen=True):
    """Who reports."""

    replica: NodeId
    incarnation: int
    role: str
    model: str
    abilities: DenoiseAbilities | None = None


class Reporter:
    """Keeps the number and the pace of reports. Each listener is told how many of its own Submits are folded in.

    A timer of its own wakes two processes for each report. With `slack_ns`, while steps end more often than reports are
    due, a report goes out with the first step that ends after it is due; the timer is for when none does.
    """

    def __init__(self, identity: Identity, listeners: tuple[NodeId, ...], interval_ns: Ns, slack_ns: Ns = 0) -> None:
        self.identity = identity
        self.submits_seen: dict[NodeId, int] = dict.fromkeys(listeners, 0)
        self.decisions: list[Decision] = []
        self._interval_ns, self._slack_ns = interval_ns, slack_ns
        self._wait_ns = interval_ns  # from a report to its timer
        self._number = 0
        self._last_ns: Ns | None = None
        self.is_timer_set = False
        self._key: tuple[int, ...] = ()
        self._is_heard_anew = True  # somebody has not heard yet what the cache holds
        self._earlier: tuple[Ns, ...] = ()

    def is_early(self, at_ns: Ns) -> bool:
        """True while the timer will ask, whatever has changed."""
        return self.is_timer_set and self._last_ns is not None and at_ns - self._last_ns < self._interval_ns

    def report(self, numbers: Numbers, at_ns: Ns, out: list[Effect]) -> None:
        """Send a report when something changed and the interval is over."""
        if self.is_early(at_ns):
            return
        self._wait_ns = self._interval_ns + (self._slack_ns if 0 < numbers.rates.step_ns < self._interval_ns else 0)
        machine = numbers.machine
        waiting, running = machine.waiting, machine.running
        kv_blocks_free, running_kv_tokens = machine.kv_blocks_free, machine.running_kv_tokens
        key = (waiting, running, kv_blocks_free, running_kv_tokens, numbers.is_draining, *self.submits_seen.values())
        if not self._is_due(key, at_ns, out):
            return
        self._number += 1
        identity, denoise = self.identity, numbers.denoise
        report = ReplicaReport(
            replica=identity.replica,
            incarnation=identity.incarnation,
            number=self._number,
            at_ns=at_ns,
            role=identity.role,
            model=identity.model,
            waiting=waiting,
            running=running,
            waiting_prefill_tokens=machine.waiting_prefill_tokens,
            running_kv_tokens=running_kv_tokens,
            kv_blocks_free=kv_blocks_free,
            kv_blocks_total=numbers.kv_blocks,
            submits_seen=0,
            step_ns=numbers.rates.step_ns,
            prefill_tokens_per_s=numbers.rates.prefill_tokens_per_s,
            draining=numbers.is_draining,
            counters=tuple(sorted({**machine.counters(), **numbers.rates.totals()}.items())),
            accounts=tuple(machine.accounts()),
            block_size=machine.block_size,
            blocked_tokens=machine.blocked_tokens,
            step_cost=machine.step_cost,
            kv_events=self._cached(numbers.cache),
            denoise_cost=None if denoise is None else denoise.denoise_cost,
            queued_work_ns=0 if denoise is None else denoise.queued_work_ns,
            pixels=(0, None) if denoise is None else denoise.pixels,
            denoise_memory=numbers.memory,
            warm=numbers.warm,
            refuses_new=numbers.refuses_new,
            abilities=identity.abilities,
            preparing=numbers.preparing,
            unprepared=numbers.unprepared,
        )
        self._send(report, out)
        # Without slack the next step's change waits for the timer; with it, a timer that was asked for moves on.
        if self.is_timer_set if self._slack_ns else running and not self.is_timer_set:
            self._ask(out)

    def _ask(self, out: list[Effect]) -> None:
        """Look again when the interval is over, or a step's end should have been."""
        assert self._last_ns is not None
        self.is_timer_set = True
        out.append(WakeAt(self._last_ns + self._wait_ns, REPORT_TIMER, self._slack_ns > 0))

    def _cached(self, cache: PrefixCache | None) -> KvEvents | None:
        if cache is None:
            return None
        events = cache.take_kv_events(everything=self._is_heard_anew)
        self._is_heard_anew = False
        return events

    def _is_due(self, key: tuple[int, ...], at_ns: Ns, out: list[Effect]) -> bool:
        """True when something changed and the interval is over; else a timer asks again."""
        if key == self._key and not self.decisions:
            return False
        if self._last_ns is None or at_ns - self._last_ns >= self._interval_ns:
            self._key = key
            return True
        if not self.is_timer_set:
            self._ask(out)
        return False

    def woke(self, earlier: tuple[Ns, ...] = ()) -> None:
        """The timer fired. At the `earlier` times it would have too, and something had changed."""
        self.is_timer_set = False
        self._earlier = earlier
        self._number += len(earlier)

    @property
    def interval_ns(self) -> Ns:
        """At most one report in this time."""
        return self._interval_ns

    def greet(self) -> None:
        """Somebody new listens: the next report is due whatever it says, and tells everything."""
        self._key = ()
        self._is_heard_anew = True

    def changed(self) -> None:
        """Something that only the accounts show changed."""
        self._key = ()

    def _send(self, report: ReplicaReport, out: list[Effect]) -> None:
        self._last_ns = report.at_ns
        decisions, self.decisions = tuple(self.decisions), []
        earlier, self._earlier = self._earlier, ()
        for listener, seen in self.submits_seen.items():
            out.append(Send(listener, Report(msgspec.structs.replace(report, submits_seen=seen), decisions, earlier)))
