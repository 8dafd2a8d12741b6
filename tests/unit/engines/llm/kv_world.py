"""Random steps whose sequences are swapped out and in, and move by reads and writes to other blocks, steps ahead."""

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
from tests.unit.engines.llm.step_world import GRAPH_ROWS, OUTPUTS, Text

from headway.core.errors import EngineError
from headway.core.events import StepDone
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan, Swap
from headway.core.request import SamplingParams
from headway.engines.llm.device_engine import DeviceLlmEngine

_AHEAD = 3
_BLOCKS = 4  # of every sequence that has any
_SIZE = 8


class Held(msgspec.Struct):
    """`state`: decodes; out (in host slots); back (swapped in, nothing computed since); read (on its way elsewhere)."""

    text: Text
    state: str = "decodes"
    table: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    stored: int = 0  # positions
    sampled: int = 0
    last: int = 0  # step that sampled last
    is_joined: bool = False
    payload: Any = None  # waits for what is read

    @property
    def known(self) -> int:
        return len(self.text.prompt) + self.sampled

    @property
    def filled(self) -> int:
        """Blocks with KV."""
        return -(-self.stored // _SIZE)


class Waiting(NamedTuple):
    step: int
    wait: Callable[[], StepDone]
    wanted: dict[int, int]


class KvWorld:
    """What `play` decides depends on the seed alone; it asserts every token and keeps the bytes that were read."""

    def __init__(self, engine: DeviceLlmEngine, texts: list[Text], seed: int, host_slots: int) -> None:
        self._engine, self._texts = engine, texts
        self._rng = Random(f"kv-{seed}")
        self._blocks = list(range(engine.limits.kv_blocks))
        self._slots = list(range(host_slots))
        self._held: dict[int, Held] = {}
        self._waiting: deque[Waiting] = deque()
        self._step = self._seq = self._fetched = 0
        self.reads: list[bytes] = []
        self.counts: Counter[str] = Counter()

    def play(self, turns: int) -> None:
        for _ in range(turns):
            if len(self._waiting) < _AHEAD and self._rng.random() < 0.7:
                self._launch()
            elif self._waiting:
                self._fetch()
        while self._waiting:
            self._fetch()
        for held in self._held.values():
            if held.state == "read":
                self.reads.append(held.payload())
            elif held.state in ("decodes", "back"):
                self.reads.append(self._engine.read_blocks(held.table[: held.filled]))

    def _fetch(self) -> None:
        waiting = self._waiting.popleft()
        done = waiting.wait()
        assert dict(zip(done.seqs, done.tokens, strict=True)) == waiting.wanted
        self._fetched = waiting.step

    def _launch(self) -> None:
        self._step += 1
        parts: dict[str, list[Any]] = {
            name: [] for name in ("leave", "preempt", "swap_out", "new", "swap_in", "join", "chunks")
        }
        before = list(self._blocks)
        self._let_go(parts)
        for held in self._held.values():  # those that ran before
            if held.state == "decodes":
                held.stored += 1
        decodes = [(seq, held) for seq, held in self._held.items() if held.state == "decodes"]
        parts["join"] = [Join(seq=seq, step=held.last) for seq, held in decodes if not held.is_joined]
        for _, held in decodes:
            held.is_joined = True
        kv_tokens = sum(held.stored for _, held in decodes)
        self._move_on(parts, before)
        self._take_up(parts)
        wanted = {}
        sampling = [*decodes, *((chunk.seq, self._held[chunk.seq]) for chunk in parts["chunks"])]
        for seq, held in sampling:
            wanted[seq], held.last = held.text.tokens[held.sampled], self._step
            held.sampled += 1
        is_graph = not parts["chunks"] and len(decodes) <= GRAPH_ROWS and self._rng.random() < 0.8
        plan = StepPlan(
            step=self._step,
            basis_step=self._fetched,
            kind="mixed",
            decodes=len(decodes),
            kv_tokens=kv_tokens,
            prefill_tokens=sum(chunk.count for chunk in parts["chunks"]),
            bucket=GRAPH_ROWS if is_graph else 0,
            graph="full" if is_graph else "none",
            **{name: tuple(found) for name, found in parts.items()},
        )
        self._waiting.append(Waiting(self._step, self._engine.launch(plan), wanted))

    def _let_go(self, parts: dict[str, list[Any]]) -> None:
        """Blocks are free at once for what the same plan takes up, and slots for the next plan."""
        rng = self._rng
        for seq, held in list(self._held.items()):
            draw = rng.random()
            if held.state not in ("decodes", "back"):
                continue
            if held.sampled == OUTPUTS:
                del self._held[seq]
                parts["leave"].append(seq)
            elif draw < 0.25 and len(self._slots) >= held.filled:
                held.slots = tuple(self._slots.pop() for _ in range(held.filled))
                parts["preempt"].append(seq)
                parts["swap_out"].append(Swap(seq, held.table[: held.filled], held.slots))
                held.state = "out"
                self.counts["out"] += 1
            elif draw < 0.4:
                held.payload = self._engine.launch_read(held.table[: held.filled])
                parts["leave"].append(seq)
                held.state = "read"
            else:
                continue
            self._blocks += held.table
            held.is_joined, held.table = False, ()

    def _move_on(self, parts: dict[str, list[Any]], free: list[int]) -> None:
        """Write what was read. It is written before the plan is launched, so to blocks that were free before it."""
        for seq, held in list(self._held.items()):
            if (
                held.state == "read"
                and held.last <= self._fetched
                and len(free) >= _BLOCKS
                and self._rng.random() < 0.6
            ):
                self.reads.append(held.payload())
                held.table = tuple(free.pop() for _ in range(_BLOCKS))
                self._blocks = [block for block in self._blocks if block not in held.table]
                self._engine.write_blocks(held.table[: held.filled], self.reads[-1])
                del self._held[seq]
                self.counts["moved"] += 1
                self._bring(parts, held)

    def _take_up(self, parts: dict[str, list[Any]]) -> None:
        rng = self._rng
        freed: list[int] = []
        for seq, held in list(self._held.items()):
            if held.last > self._fetched or rng.random() < 0.4:
                continue
            if held.state == "out" and len(self._blocks) >= _BLOCKS:
                held.table, held.state = self._taken(), "back"
                parts["swap_in"].append(Swap(seq, held.table[: held.filled], held.slots))
                freed += held.slots
                self.counts["in"] += 1
                if rng.random() < 0.5:
                    self._chunk(parts, seq, held, held.table)
            elif held.state == "back":
                self.counts["later"] += 1
                self._chunk(parts, seq, held, held.table)
        if len(self._held) < 5 and len(self._blocks) >= _BLOCKS and rng.random() < 0.6:
            self._bring(parts, Held(rng.choice(self._texts[:3]), table=self._taken()))
        self._slots += freed

    def _bring(self, parts: dict[str, list[Any]], held: Held) -> None:
        self._seq += 1
        self._held[self._seq] = held
        params = {"max_tokens": 1000, "temperature": 0.0, "ignore_eos": True, **held.text.how}
        parts["new"].append(
            NewSequence(
                seq=self._seq,
                request=RequestId(f"req-{self._seq}"),
                prompt=tuple(held.text.prompt),
                outputs=tuple(held.text.tokens[: held.sampled]),
                sampling=SamplingParams(**params),
            )
        )
        self._chunk(parts, self._seq, held, held.table)

    def _chunk(self, parts: dict[str, list[Any]], seq: int, held: Held, table: tuple[int, ...]) -> None:
        parts["chunks"].append(Chunk(seq, held.stored, held.known - held.stored, samples=True, table=table))
        held.stored, held.state = held.known, "decodes"

    def _taken(self) -> tuple[int, ...]:
        return tuple(self._blocks.pop(self._rng.randrange(len(self._blocks))) for _ in range(_BLOCKS))


def end(world: KvWorld, engine: DeviceLlmEngine) -> None:
    """Whatever is open comes back."""
    engine.close()
    assert engine.transfers.names == ()
    for held in world._held.values():
        if held.state == "read":
            try:
                held.payload()
            except EngineError:
                continue
