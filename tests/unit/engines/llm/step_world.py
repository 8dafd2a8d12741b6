"""Random steps on a device engine whose device works late: launched ahead, fetched late, failing, dropped, closed."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

import msgspec
from tests.unit.engines.llm.planner import Planner

from headway.core.errors import EngineError, InvariantError
from headway.core.events import StepDone
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.ports import LlmEngine
from headway.core.request import SamplingParams
from headway.engines.llm.device_engine import DeviceLlmEngine

OUTPUTS = 6
GRAPH_ROWS = 4
_AHEAD = 3
_BLOCKS = 4  # of every sequence
_HOW: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"temperature": 0.9, "seed": 7, "top_p": 0.8, "top_k": 20},
    {"repetition_penalty": 1.9, "frequency_penalty": 1.5},
)
_PROMPTS = ([5, 17, 3, 99, 41, 8, 77, 120, 64, 31], [9, 9, 4], [101, 33, 70, 12, 6], [55, 2, 90, 18, 44, 61, 23])


class Failing(Protocol):
    """`fail` is the chance that a call of the device fails; one that is real has nobody look at it."""

    fail: float


class Text(NamedTuple):
    """A prompt, how it is continued, and the tokens that a device gives which does everything at once."""

    prompt: list[int]
    how: dict[str, Any]
    tokens: list[int]


class Running(msgspec.Struct):
    text: Text
    table: tuple[int, ...]
    length: int = 0  # positions stored
    sampled: int = 0
    is_joined: bool = False


class Waiting(NamedTuple):
    name: str  # of its lease
    wait: Callable[[], StepDone]
    wanted: dict[int, int]


def texts(engine: LlmEngine) -> list[Text]:
    planner = Planner(engine)
    pairs = zip(_PROMPTS, _HOW, strict=True)
    return [Text(prompt, how, planner.alone(prompt, OUTPUTS, ignore_eos=True, **how)) for prompt, how in pairs]


class StepWorld:
    """`play` asserts that every token is right and that nothing is lent when all is over."""

    def __init__(self, engine: DeviceLlmEngine, device: Failing, texts: list[Text], seed: int) -> None:
        self._engine, self._device, self._texts = engine, device, texts
        self.leases = engine.leases
        self._rng = Random(f"steps-{seed}")
        self._fails = seed % 2 == 1
        self._step = self._seq = 0
        self._blocks = list(range(engine.limits.kv_blocks))
        self._running: dict[int, Running] = {}
        self._leaving: list[int] = []
        self._waiting: deque[Waiting] = deque()
        self.fetched = self.failures = 0

    def play(self, turns: int) -> None:
        for _ in range(turns):
            self._device.fail = 0.02 if self._fails and self._rng.random() < 0.5 else 0.0
            if len(self._waiting) < _AHEAD and self._rng.random() < 0.7:
                self._launch()
            elif self._waiting:
                self._fetch()
        self._device.fail = 0.0
        if self._rng.random() < 0.5:
            while self._waiting:
                self._fetch()
            self._check_all_returned()
        self._engine.close()
        self._check_all_returned()
        for waiting in self._waiting:
            self._take(waiting)

    def _check_all_returned(self) -> None:
        assert self.leases.names == ()
        assert self.leases.free == self.leases.all
        assert self.leases.all <= _AHEAD + 1

    def _launch(self) -> None:
        self._step += 1
        plan, wanted = self._plan()
        kind = self._rng.random() if self._fails else 1.0
        if kind < 0.05:
            plan = msgspec.structs.replace(plan, kv_tokens=plan.kv_tokens + 1)  # drift
        elif kind < 0.1:
            plan = msgspec.structs.replace(plan, graph="full", chunks=(), prefill_tokens=0, new=(), bucket=16)
        try:
            wait = self._engine.launch(plan)
        except (EngineError, InvariantError):
            assert f"step-{plan.step}" not in self.leases.names
            self._void()
        else:
            self._waiting.append(Waiting(f"step-{plan.step}", wait, wanted))

    def _fetch(self) -> None:
        if not self._take(self._waiting.popleft()):
            self._check_all_returned()
            self._void()

    def _take(self, waiting: Waiting) -> bool:
        """False when the step failed; a step that does not fail gives the right tokens."""
        try:
            done = waiting.wait()
        except EngineError:
            self.failures += 1
            return False
        assert dict(zip(done.seqs, done.tokens, strict=True)) == waiting.wanted
        self.fetched += 1
        return True

    def _void(self) -> None:
        """Sequences leave. Steps that did not fail are asked for; of those that failed, too, some are forgotten."""
        self._leaving += self._running
        for running in self._running.values():
            self._blocks += running.table
        self._running.clear()
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.name in self.leases.names or self._rng.random() < 0.5:
                self._take(waiting)

    def _plan(self) -> tuple[StepPlan, dict[int, int]]:
        rng = self._rng
        leaving, self._leaving = self._leaving, []
        for seq, running in list(self._running.items()):
            if running.sampled == OUTPUTS or rng.random() < 0.05:
                self._blocks += self._running.pop(seq).table
                leaving.append(seq)
        joins = [seq for seq, running in self._running.items() if not running.is_joined]
        decodes = dict(self._running)
        for running in decodes.values():
            running.is_joined = True
            running.length += 1
        brought = [self._new() for _ in range(rng.choice((0, 0, 1, 2)) if decodes else 1)]
        is_graph = not brought and len(decodes) <= GRAPH_ROWS and rng.random() < 0.8
        plan = StepPlan(
            step=self._step,
            basis_step=self._step - 1,
            kind="mixed",
            leave=tuple(leaving),
            new=tuple(new for new, _ in brought),
            join=tuple(Join(seq=seq, step=self._step - 1) for seq in joins),
            decodes=len(decodes),
            kv_tokens=sum(running.length for running in decodes.values()),
            chunks=tuple(chunk for _, chunk in brought),
            prefill_tokens=sum(chunk.count for _, chunk in brought),
            bucket=GRAPH_ROWS if is_graph else 0,
            graph="full" if is_graph else "none",
        )
        wanted = {}
        for seq, running in self._running.items():
            wanted[seq] = running.text.tokens[running.sampled]
            running.sampled += 1
        return plan, wanted

    def _new(self) -> tuple[NewSequence, Chunk]:
        self._seq += 1
        text = self._rng.choices(self._texts, (8, 8, 8, 1))[0]
        table = tuple(self._blocks.pop(self._rng.randrange(len(self._blocks))) for _ in range(_BLOCKS))
        count = len(text.prompt)
        self._running[self._seq] = Running(text, table, length=count)
        params = SamplingParams(**{"max_tokens": 1000, "temperature": 0.0, "ignore_eos": True, **text.how})
        request = RequestId(f"req-{self._seq}")
        new = NewSequence(seq=self._seq, request=request, prompt=tuple(text.prompt), outputs=(), sampling=params)
        return new, Chunk(seq=self._seq, start=0, count=count, samples=True, table=table)
