"""Branches of a captured region. # SPEC E1"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.unit.engines.llm.conftest import TINY
from tests.unit.engines.llm.races import Race
from tests.unit.engines.llm.stream_device import StreamDevice

from headway.core.errors import InvariantError
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.forks import Forks, in_line
from headway.engines.llm.loading import EngineSettings
from headway.engines.llm.sdpa import SdpaOps


class Streams:
    """A `split` that keeps a record."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def split(self, work: Callable[[], None]) -> Callable[[], None]:
        self.log.append("fork")
        try:
            work()
        except BaseException:
            self.log.append("join")
            raise
        return lambda: self.log.append("join")


def test_outside_of_a_region_the_work_is_done_in_line() -> None:
    streams, done = Streams(), list[int]()
    Forks(streams.split).fork(lambda: done.append(1))()
    assert (done, streams.log) == ([1], [])


def test_a_branch_is_joined_once() -> None:
    streams = Streams()
    forks = Forks(streams.split)
    with forks.region():
        join = forks.fork(lambda: streams.log.append("work"))
        join()
        join()
    assert streams.log == ["fork", "work", "join"]


def test_a_region_that_leaves_branches_joins_them_and_is_refused() -> None:
    streams = Streams()
    forks = Forks(streams.split)

    def captured() -> None:
        with forks.region():
            forks.fork(lambda: None)
            forks.fork(lambda: None)()
            forks.fork(lambda: None)

    with pytest.raises(InvariantError, match="ends with 2 branches that were forked and not joined"):
        captured()
    assert streams.log.count("fork") == streams.log.count("join") == 3
    with forks.region():
        forks.fork(lambda: None)()


@pytest.mark.parametrize("is_in_branch", [True, False])
def test_a_failure_is_told_as_it_is_and_every_stream_comes_back(is_in_branch: bool) -> None:
    streams = Streams()
    forks = Forks(streams.split)

    def fail() -> None:
        raise RuntimeError("out of memory")

    def captured() -> None:
        with forks.region():
            forks.fork(lambda: None)
            (forks.fork if is_in_branch else in_line)(fail)

    with pytest.raises(RuntimeError, match="out of memory"):
        captured()
    assert streams.log.count("fork") == streams.log.count("join") == 1 + is_in_branch


def test_a_branch_does_not_fork() -> None:
    forks = Forks(Streams().split)
    with pytest.raises(InvariantError, match="fork from the capturing stream only"), forks.region():
        forks.fork(lambda: forks.fork(lambda: None)())()


@pytest.fixture(params=range(3))
def device(request: pytest.FixtureRequest) -> Iterator[StreamDevice]:
    device = StreamDevice(request.param)
    with device.mode():
        yield device


def captured(device: StreamDevice, is_joined_before: bool) -> Callable[[], torch.Tensor]:
    source, beside, after = (torch.zeros(8, device=device.where) for _ in range(3))

    def compute() -> torch.Tensor:
        join = device.fork(lambda: beside.copy_(source))
        doubled = source * 2
        if is_joined_before:
            join()
        after.copy_(beside + doubled)
        join()
        return after

    source.fill_(3.0)
    return device.capture(compute)


def test_a_replay_gives_what_the_joined_branch_wrote(device: StreamDevice) -> None:
    replay = captured(device, is_joined_before=True)
    assert [replay().cpu().tolist(), replay().cpu().tolist()] == [[9.0] * 8] * 2


def test_reading_what_a_branch_writes_before_the_join_is_an_error_of_the_double(device: StreamDevice) -> None:
    # SPEC E1
    replay = captured(device, is_joined_before=False)
    with pytest.raises(Race):
        replay().cpu()


def test_copy_lanes_and_events_stay_refused_within_a_capture(device: StreamDevice) -> None:
    def compute() -> torch.Tensor:
        device.event().record("compute")
        return torch.zeros(8, device=device.where)

    with pytest.raises(InvariantError, match="record within a capture"):
        device.capture(compute)


@pytest.fixture
def build(tiny_folder: Path, kernel_cache: Path) -> Callable[[StreamDevice], DeviceLlmEngine]:
    def built(device: StreamDevice) -> DeviceLlmEngine:
        settings = EngineSettings(
            folder=tiny_folder,
            model="tiny",
            cache=kernel_cache,
            kv_blocks=16,
            block_size=8,
            dtype="float32",
            max_model_len=16,
            max_step_tokens=16,
            graph_rows=(4,),
            piece_rows=(8,),
        )
        return DeviceLlmEngine(settings, device)

    return built


def test_captured_steps_and_pieces_store_values_beside_the_keys(
    build: Callable[[StreamDevice], DeviceLlmEngine],
) -> None:
    # SPEC E1: 16 positions are 2 blocks, so one size of whole steps is two captures; and one set of pieces.
    device = StreamDevice(0)
    with device.mode():
        build(device)
    assert device.branches == (2 + 1) * TINY["num_hidden_layers"]


def test_an_engine_whose_branches_are_not_joined_does_not_start(
    build: Callable[[StreamDevice], DeviceLlmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    # SPEC E1
    def unjoined(self: SdpaOps, qkv, rows, keys, values, norms) -> None:
        self._fork(lambda: self._store_values(qkv, rows, values))
        self._turn_and_store_keys(qkv, rows, keys, norms)

    monkeypatch.setattr(SdpaOps, "rope_store", unjoined)
    device = StreamDevice(0)
    with device.mode(), pytest.raises(InvariantError, match="2 branches that were forked and not joined"):
        build(device)
