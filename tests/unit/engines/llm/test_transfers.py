"""Swaps, reads and writes of KV beside computing, on a device that does its work late. # SPEC E2"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import torch
from tests.unit.engines.llm.kv_world import KvWorld, end
from tests.unit.engines.llm.late_device import LateDevice
from tests.unit.engines.llm.planner import Planner
from tests.unit.engines.llm.races import Race
from tests.unit.engines.llm.step_world import GRAPH_ROWS, Text, texts
from tests.unit.engines.llm.stream_device import LANES, StreamDevice
from tests.unit.engines.llm.test_streams import broken, source

from headway.core.errors import EngineError
from headway.core.plans import Swap
from headway.engines.llm import device_engine, transfers
from headway.engines.llm.batch import PersistentBatch
from headway.engines.llm.config import read_config
from headway.engines.llm.device import Device
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.kv import KvPool
from headway.engines.llm.loading import EngineSettings
from headway.engines.llm.transfers import KvTransfers

TURNS, SEEDS, HOST_SLOTS = 24, 4, 6
MODULE = "headway.engines.llm.transfers"
Build = Callable[[Device], DeviceLlmEngine]


@pytest.fixture(scope="module")
def build(tiny_folder: Path, kernel_cache: Path) -> Build:
    settings = EngineSettings(
        folder=tiny_folder,
        model="tiny",
        cache=kernel_cache,
        kv_blocks=24,
        block_size=8,
        host_slots=HOST_SLOTS,
        dtype="float32",
        max_model_len=32,
        max_step_tokens=64,
        graph_rows=(GRAPH_ROWS,),
    )
    return lambda device: DeviceLlmEngine(settings, device)


@pytest.fixture(scope="module")
def known(build: Build) -> list[Text]:
    return texts(build(LateDevice()))


def small_arenas(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    monkeypatch.setattr(transfers, "_ARENA_BYTES", blocks * 2 * 2 * 8 * 2 * 16 * 4)


def played(engine: DeviceLlmEngine, known: list[Text], seed: int) -> KvWorld:
    world = KvWorld(engine, known, seed, HOST_SLOTS)
    world.play(TURNS)
    end(world, engine)
    return world


class Synchronous:
    """`KvTransfers` as a CPU has them: each is over when it returns."""

    names = ()

    def __init__(self, _device: Device, kv: KvPool, _host_slots: int) -> None:
        self._kv, self.swap_out, self.swap_in = kv, kv.swap_out, kv.swap_in

    def read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        found = self._kv.read(blocks)
        return lambda: found

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        return lambda: self._kv.write(blocks, payload)

    def hold_step(self, _touched: object) -> None:
        """Nothing is under way."""

    def end_all(self) -> None:
        """Nothing is under way."""


class Exact(NamedTuple):
    reads: list[bytes]
    stalls: int
    transfers: int


@pytest.fixture(scope="module")
def exact(build: Build, known: list[Text]) -> Callable[[int], Exact]:
    """What the same worlds read where the host waits for every copy, and how often it waited."""
    found: dict[int, Exact] = {}

    def of(seed: int) -> Exact:
        if seed not in found:
            device = StreamDevice(seed)
            device.eager = dict.fromkeys(LANES, 1.0)
            with pytest.MonkeyPatch.context() as patch, device.mode():
                patch.setattr(device_engine, "KvTransfers", Synchronous)
                world = played(build(device), known, seed)
            found[seed] = Exact(world.reads, device.stalls, world.counts["out"] + len(world.reads))
        return found[seed]

    return of


# SPEC E2, B4
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_token_and_every_byte_is_that_of_copies_done_at_once(
    build: Build, known: list[Text], exact: Callable[[int], Exact], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_arenas(monkeypatch, 1 + seed % 3)
    device = StreamDevice(seed)
    with device.mode():
        world = played(build(device), known, seed)
    assert world.reads == exact(seed).reads
    assert device.stalls == 0
    assert exact(seed).stalls >= exact(seed).transfers > 0


def test_the_worlds_hold_what_they_are_for(build: Build, known: list[Text]) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = KvWorld(build(LateDevice()), known, seed, HOST_SLOTS)
        world.play(TURNS)
        counts += world.counts
    assert min(counts[name] for name in ("out", "in", "later", "moved")) >= SEEDS, counts


class Pools:
    """Random transfers and steps on a pool alone, whose blocks each hold one value; asserts what every read finds."""

    BLOCKS, SLOTS = 6, 3

    def __init__(self, pool: KvPool, moves: KvTransfers, seed: int) -> None:
        self._pool, self._moves, self._rng = pool, moves, Random(f"pools-{seed}")
        self._blocks, self._slots = [0.0] * self.BLOCKS, [0.0] * self.SLOTS
        self._value = 0.0
        self._seen: list[tuple[torch.Tensor, float]] = []  # by computing
        self._waits: list[tuple[Callable[[], bytes], list[float]]] = []

    def play(self, turns: int) -> None:
        fill(self._pool, list(range(self.BLOCKS)), 0.0)
        self._moves.swap_out([0, 1, 2], [0, 1, 2])
        for _ in range(turns):
            blocks = self._rng.sample(range(self.BLOCKS), self._rng.choice((1, 2, 3)))
            slots = self._rng.sample(range(self.SLOTS), len(blocks))
            self._rng.choice((self._step, self._out, self._in, self._read, self._write))(blocks, slots)
            if self._waits and self._rng.random() < 0.3:
                self._check(*self._waits.pop(0))
        for wait, values in self._waits:
            self._check(wait, values)
        everything = list(range(self.BLOCKS))
        self._check(self._moves.read(everything), self._blocks)
        self._moves.swap_in(everything[: self.SLOTS], list(range(self.SLOTS)))
        self._check(self._moves.read(everything[: self.SLOTS]), self._slots)
        for seen, value in self._seen:
            assert seen.cpu().unique().tolist() == [value]

    def _check(self, wait: Callable[[], bytes], values: list[float]) -> None:
        found = torch.frombuffer(bytearray(wait()), dtype=torch.float32)
        keys = found.view(2, -1, len(values), 8 * 2 * 16)[0]
        assert keys.amin((0, 2)).tolist() == keys.amax((0, 2)).tolist() == values

    def _next(self) -> float:
        self._value += 1.0
        return self._value

    def _step(self, blocks: list[int], _slots: list[int]) -> None:
        """Reads all, writes the first."""
        self._moves.hold_step(lambda: (set(blocks), set(blocks[:1])))
        for block in blocks:
            self._seen.append((self._pool.keys[:, block * 8 : block * 8 + 8].clone(), self._blocks[block]))
        self._blocks[blocks[0]] = self._next()
        fill(self._pool, blocks[:1], self._blocks[blocks[0]])

    def _out(self, blocks: list[int], slots: list[int]) -> None:
        self._moves.swap_out(blocks, slots)
        for block, slot in zip(blocks, slots, strict=True):
            self._slots[slot] = self._blocks[block]

    def _in(self, blocks: list[int], slots: list[int]) -> None:
        self._moves.swap_in(blocks, slots)
        for block, slot in zip(blocks, slots, strict=True):
            self._blocks[block] = self._slots[slot]

    def _read(self, blocks: list[int], _slots: list[int]) -> None:
        self._waits.append((self._moves.read(blocks), [self._blocks[block] for block in blocks]))

    def _write(self, blocks: list[int], _slots: list[int]) -> None:
        for block in blocks:
            self._blocks[block] = self._next()
        values = torch.tensor([self._blocks[block] for block in blocks])
        payload = values[None, None, :, None].expand(2, 2, len(blocks), 8 * 2 * 16).contiguous()
        self._moves.write(blocks, payload.numpy().tobytes())


def pools_played(tiny_folder: Path, seed: int, kind: type[KvTransfers]) -> KvTransfers:
    device = StreamDevice(seed)
    with torch.inference_mode(), device.mode():
        pool = KvPool(read_config(tiny_folder), Pools.BLOCKS, 8, 0, device.where)
        moves = kind(device, pool, Pools.SLOTS)
        Pools(pool, moves, seed).play(30)
    return moves


# SPEC E2
@pytest.mark.parametrize("seed", range(8))
def test_blocks_and_slots_hold_what_was_copied_last(
    tiny_folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_arenas(monkeypatch, 1 + seed % 3)
    moves = pools_played(tiny_folder, seed, KvTransfers)
    moves.end_all()
    assert moves.names == ()


# SPEC E2
@pytest.mark.parametrize("seed", range(6))
def test_transfers_that_fail_anywhere_leave_nothing_lent(tiny_folder: Path, seed: int) -> None:
    device, failures = StreamDevice(seed), 0
    with torch.inference_mode(), device.mode():
        pool = KvPool(read_config(tiny_folder), Pools.BLOCKS, 8, 0, device.where)
        moves = KvTransfers(device, pool, Pools.SLOTS)
        for part in range(6):
            device.fail = 0.05
            try:
                Pools(pool, moves, 10 * seed + part).play(10)
            except (RuntimeError, EngineError):
                failures += 1
                device.fail = 0.0
                moves.end_all()
                assert moves.names == ()
        device.fail = 0.0
        device.drain()
        moves.end_all()
        rooms = moves.free
        Pools(pool, moves, seed).play(10)  # and it works on
        moves.end_all()
    assert failures > 0
    assert (moves.names, moves.free >= rooms) == ((), True)


# SPEC E2
@pytest.mark.parametrize(
    "forgets",
    [
        pytest.param(lambda reads, _writes: (reads, set()), id="what it writes"),
        pytest.param(lambda _reads, _writes: (set(), set()), id="everything"),
    ],
)
def test_a_step_that_forgets_its_blocks_is_noticed(
    build: Build,
    known: list[Text],
    exact: Callable[[int], Exact],
    monkeypatch: pytest.MonkeyPatch,
    forgets: Callable[[set[int], set[int]], tuple[set[int], set[int]]],
) -> None:
    right = PersistentBatch.touched
    monkeypatch.setattr(PersistentBatch, "touched", lambda self, inputs: forgets(*right(self, inputs)))
    for seed in range(SEEDS):
        device = StreamDevice(seed)
        device.eager = {lane: 0.0 if lane.startswith("kv") else 1.0 for lane in LANES}
        try:
            with device.mode():
                reads = played(build(device), known, seed).reads
        except Exception:  # whatever went wrong, it was not silent
            return
        if reads != exact(seed).reads:
            return
    pytest.fail("nobody noticed")


# SPEC E2
def test_steps_go_on_while_a_swap_and_a_read_are_under_way(build: Build) -> None:
    """Their lanes do nothing unless somebody waits for them: five steps come and go, and nobody does."""
    device = StreamDevice(0)
    device.eager = {lane: 0.0 if lane.startswith("kv") else 1.0 for lane in LANES}
    with device.mode():
        engine = build(device)
        planner = Planner(engine)
        for seq in (1, 2):
            planner.new(seq, [5, 17, 3, 99, 41, 8, 77, 120, 64, 31])
            planner.chunk(seq, 10)
        planner.run()
        planner.join(1)
        wait = engine.launch_read(planner.tables[2])
        swap = Swap(seq=2, device_blocks=tuple(planner.tables[2]), host_slots=(0, 1))
        planner.drop(2, "preempt")
        planner.free = planner.free[:-2]  # the blocks of 2 are not given out again
        planner.run(swap_out=(swap,))
        for _ in range(4):
            planner.run(bucket=4, graph="full", kind="decode")
        assert device.behind("kv_out") > 0
        assert engine.transfers.names == ("transfer-1", "transfer-2")
        moved = planner.take(2)
        planner.run(swap_in=(Swap(seq=2, device_blocks=moved, host_slots=(0, 1)),))
        assert device.behind("kv_out") > 0 < device.behind("kv_in")
        assert device.stalls == 0
        assert wait() == engine.read_blocks(moved)


# SPEC E2
def test_a_step_that_fails_ends_what_is_under_way(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    device = StreamDevice(0)
    device.eager = dict.fromkeys(LANES, 0.0)
    with device.mode():
        engine = build(device)
        planner = Planner(engine)
        planner.new(1, [5, 17, 3])
        planner.chunk(1, 3)
        planner.run()
        wait = engine.launch_read(planner.tables[1])
        held = tuple(planner.tables[1])
        planner.drop(1, "preempt")
        with monkeypatch.context() as patch:
            patch.setattr(device, "touch", lost)
            with pytest.raises(EngineError, match="step 2 failed on tiny: the device is lost"):
                planner.run(swap_out=(Swap(seq=1, device_blocks=held, host_slots=(0,)),))
        assert engine.transfers.names == ()
        with pytest.raises(EngineError, match="transfer-1 ended before it was done"):
            wait()
        assert engine.transfers.free > 0


def lost(called: str) -> None:
    if called == "hold":
        raise RuntimeError("the device is lost")


def orders() -> list[tuple[int, str]]:
    pattern = re.compile(r"^ +\S+\.(record|hold|wait)\(.*\)( +#.*)?$")
    return [(number, line.strip()) for number, line in enumerate(source(MODULE).splitlines()) if pattern.match(line)]


# SPEC E2
@pytest.mark.parametrize(("number", "line"), orders())
def test_no_event_and_no_wait_of_a_transfer_can_be_left_out(tiny_folder: Path, number: int, line: str) -> None:
    lines = source(MODULE).splitlines()
    lines[number] = lines[number].replace(line, "pass")
    made = broken(MODULE, "\n".join(lines))
    for seed in range(12):
        try:
            pools_played(tiny_folder, seed, made.KvTransfers)
        except Exception:  # whatever went wrong, it was not silent
            return
    pytest.fail(f"nobody noticed that this is missing: {line}")


@pytest.fixture
def device() -> Iterator[StreamDevice]:
    """Nothing runs before it must."""
    device = StreamDevice(0)
    device.eager = dict.fromkeys(LANES, 0.0)
    with device.mode():
        yield device


@pytest.fixture
def pool(device: StreamDevice, tiny_folder: Path) -> KvPool:
    with torch.inference_mode():
        return KvPool(read_config(tiny_folder), 8, 8, 4, device.where)


def fill(pool: KvPool, blocks: list[int], value: float) -> None:
    for block in blocks:
        pool.keys[:, block * 8 : block * 8 + 8].fill_(value)
        pool.values[:, block * 8 : block * 8 + 8].fill_(-value)


# SPEC E2
def test_a_block_that_is_copied_out_is_not_written_before(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 4)
    fill(pool, [1, 2], 7.0)
    moves.swap_out([1, 2], [3, 0])
    moves.hold_step(lambda: ({1}, {1}))
    fill(pool, [1], 9.0)
    moves.swap_in([5, 6], [3, 0])
    wait = moves.read([1, 5, 6])
    assert wait() == pool.read([1, 5, 6])
    assert {float(pool.keys[0, block * 8, 0, 0]) for block in (1, 5, 6)} == {9.0, 7.0}


# SPEC E2
def test_a_step_that_writes_what_is_copied_out_without_asking_is_an_error_of_the_double(
    device: StreamDevice, pool: KvPool
) -> None:
    moves = KvTransfers(device, pool, 4)
    fill(pool, [1], 7.0)
    wait = moves.read([1])
    fill(pool, [1], 9.0)
    device.stall()
    with pytest.raises(Race):
        wait()


# SPEC E2
def test_only_a_step_at_the_same_blocks_waits(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 4)
    moves.swap_out([1], [0])
    moves.swap_in([2], [1])
    given = device.given["compute"]
    moves.hold_step(lambda: ({0, 1, 3}, {3}))
    assert device.given["compute"] == given
    moves.hold_step(lambda: ({2}, set()))
    moves.hold_step(lambda: ({1}, {1}))
    assert device.given["compute"] == given + 2


# SPEC E2
def test_what_is_over_goes_back_without_waiting(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 4)
    moves.swap_out([1], [0])
    moves.hold_step(lambda: (set(), set()))
    assert (moves.names, moves.free) == (("transfer-1",), 0)
    device.drain()
    moves.hold_step(lambda: (set(), set()))
    assert (moves.names, moves.free) == ((), 1)


# SPEC E2
def test_a_read_keeps_its_memory_until_it_was_waited_for(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 4)
    fill(pool, [1], 7.0)
    wait = moves.read([1])
    device.drain()
    moves.swap_out([1], [0])
    assert moves.names == ("transfer-1", "transfer-2")
    assert wait() == pool.read([1])
    assert (moves.names, moves.free) == (("transfer-2",), 1)


# SPEC E2
def test_transfers_that_are_ended_give_everything_back(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 4)
    wait = moves.read([1])
    moves.swap_out([1], [0])
    moves.end_all()
    assert (moves.names, moves.free) == ((), 2)
    with pytest.raises(EngineError, match="transfer-1 ended before it was done"):
        wait()


# SPEC E2
@pytest.mark.parametrize("what", ["copy", "record", "hold", "within"])
def test_a_transfer_that_cannot_be_queued_gives_everything_back(
    device: StreamDevice, pool: KvPool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = KvTransfers(device, pool, 4)

    def touch(called: str) -> None:
        if called == what:
            raise RuntimeError("the device is lost")

    monkeypatch.setattr(device, "touch", touch)
    for begin in (
        lambda: moves.read([1]),
        lambda: moves.swap_in([1], [0]),
        lambda: moves.write([1], bytes(pool.bytes_per_block)),
    ):
        with pytest.raises(RuntimeError, match="the device is lost"):
            begin()
    assert (moves.names, moves.free) == ((), 1)


# SPEC E2
def test_a_read_that_fails_is_an_engine_error_and_gives_everything_back(
    device: StreamDevice, pool: KvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = KvTransfers(device, pool, 4)
    wait = moves.read([1])

    def touch(called: str) -> None:
        raise RuntimeError(f"the device is lost at {called}")

    monkeypatch.setattr(device, "touch", touch)
    with pytest.raises(EngineError, match="transfer-1 failed: the device is lost at wait"):
        wait()
    assert (moves.names, moves.free) == ((), 1)


# SPEC E2
def test_bytes_are_staged_by_another_thread_and_written_where_they_are_queued(
    device: StreamDevice, pool: KvPool
) -> None:
    moves = KvTransfers(device, pool, 4)
    fill(pool, [1, 2], 7.0)
    fill(pool, [2], 8.0)
    with ThreadPoolExecutor(1) as threads:
        queue = threads.submit(moves.stage_write, [4, 5], pool.read([1, 2])).result()
    fill(pool, [4], 9.0)  # before the write
    assert moves.names == ()
    queue()
    assert moves.read([4, 5])() == pool.read([1, 2])
    assert len(moves.names) == 1


def test_no_blocks_are_read_and_written_too(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 4)
    moves.write([], b"")
    assert moves.read([])() == b""


def test_refuses_blocks_slots_and_payloads_that_do_not_fit(device: StreamDevice, pool: KvPool) -> None:
    moves = KvTransfers(device, pool, 2)
    with pytest.raises(EngineError, match="block 8 is outside the pool of 8"):
        moves.read([8])
    with pytest.raises(EngineError, match="host slot 2 is outside"):
        moves.swap_out([0], [2])
    with pytest.raises(EngineError, match="2 blocks need"):
        moves.write([0, 1], bytes(pool.bytes_per_block))
    assert moves.names == ()
