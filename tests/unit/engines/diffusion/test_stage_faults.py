"""What a pool of stage processes does when one dies, hangs, or is cut off in the middle of a message."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headway.core.errors import EngineError  # noqa: E402
from headway.engines.diffusion import stage_host, stage_process, stage_wire  # noqa: E402
from headway.engines.diffusion.families.protocol import Size  # noqa: E402
from headway.engines.diffusion.stage_pool import StagePool  # noqa: E402
from headway.engines.diffusion.stage_process import Pace, Patience, StageHung  # noqa: E402
from headway.engines.diffusion.stage_wire import Decode, Encode, EncodePicture, HostOrder, Role, Sorry, Work  # noqa: E402

CPU = torch.device("cpu")


def said(words: str) -> Encode:
    return Encode((words,))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[StagePool]:
    monkeypatch.setattr(stage_process, "_MODULE", "tests.unit.engines.diffusion.fake_stage_host")
    made = StagePool(HostOrder("folder", "text"), 1)
    yield made
    made.close()


# SPEC G1: a prompt that kills whoever reads it (out of memory on a host) is its row's failure; the plan's others go on.
def test_a_call_that_kills_processes_fails_as_a_row_does(pool: StagePool) -> None:
    with pytest.raises(RuntimeError, match="two processes of the text stage in a row died of one call"):
        pool.start(said("die"))()
    assert pool.start(said("next"))() == b"next"
    assert pool.replaced == 2


def test_what_is_left_of_a_message_is_never_taken_for_the_answer_to_the_next(
    pool: StagePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.hosts[0].ready()
    whole = stage_process.receive

    def half(link: socket.socket, *_: Any) -> bytes | None:
        monkeypatch.setattr(stage_process, "receive", whole)
        link.recv(4)
        raise MemoryError

    monkeypatch.setattr(stage_process, "receive", half)
    with pytest.raises(MemoryError):
        pool.start(said("mine"))()
    assert pool.start(said("yours"))() == b"yours"


# SPEC L-2
def test_closing_ends_a_call_that_hangs_and_starts_no_process_again(pool: StagePool) -> None:
    pool.hosts[0].ready()
    waiting, behind = pool.start(said("hang")), pool.start(said("never begun"))
    process = pool.hosts[0].process
    pool.close()
    with pytest.raises(RuntimeError, match="is closed"):
        waiting()
    with pytest.raises(BaseException, match=r"^$|is closed"):  # cancelled, or begun in between
        behind()
    assert process.returncode is not None
    assert pool.replaced == 0


def test_closing_ends_a_process_that_is_stopped(pool: StagePool) -> None:
    process = pool.hosts[0].process
    os.kill(process.pid, signal.SIGSTOP)
    pool.close()
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_dies_of_loading_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_process, "_MODULE", "tests.unit.engines.diffusion.fake_stage_host")
    broken = StagePool(HostOrder("broken", "text"), 1)
    try:
        with pytest.raises(EngineError, match="died while it loaded"):
            broken.held_bytes()
    finally:
        broken.close()


def test_a_host_without_room_for_a_process_fails_the_row_and_tries_again_later(
    pool: StagePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def full(*_: Any, **__: Any) -> None:
            raise OSError("Cannot allocate memory")

        patch.setattr(subprocess, "Popen", full)
        with pytest.raises(RuntimeError, match="cannot be started: Cannot allocate memory"):
            pool.start(said("die"))()
    assert pool.start(said("next"))() == b"next"


LARGE = b"x" * (8 << 20)  # more than a socket holds
QUICK = Patience(factor=2.0, floor_s=3.0, load_s=120.0)


def decoded(words: str) -> Decode:
    return Decode(words.encode(), Size(32, 32))


WORK: dict[Role, Callable[[str], Work]] = {
    "text": said,
    "encode": lambda words: EncodePicture(words.encode()),
    "decode": decoded,
}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StagePool]]:
    """Pools whose first call, which any process may take its time for, is over."""
    monkeypatch.setattr(stage_process, "_MODULE", "tests.unit.engines.diffusion.fake_stage_host")
    pools: list[StagePool] = []

    def make(role: Role = "text", count: int = 1) -> StagePool:
        pools.append(StagePool(HostOrder("folder", role), count, QUICK))
        first = "first" if role == "text" else LARGE.decode()
        assert pools[-1].start(WORK[role](first))() == first.encode()
        return pools[-1]

    yield make
    for one in pools:
        one.close()


# SPEC G1 (issue 5: a watchdog per stage at k x estimate)
@pytest.mark.parametrize("moment", ["stop", "cut"])
def test_a_process_that_hangs_is_killed_and_its_call_fails_precisely(
    moment: str, watched: Callable[..., StagePool]
) -> None:
    pool = watched()
    process = pool.hosts[0].process
    with pytest.raises(StageHung, match=rf"process {process.pid} of the text stage gave no answer in 3\.0 s"):
        pool.start(said(moment))()
    assert process.returncode == -signal.SIGKILL
    assert pool.start(said("next"))() == b"next"
    assert pool.replaced == 1


@pytest.mark.parametrize("role", ["encode", "decode"])
def test_a_picture_that_hung_is_done_once_more_by_the_process_that_takes_its_place(
    role: Role, watched: Callable[..., StagePool], tmp_path: Path
) -> None:
    pool = watched(role)
    words = f"stop-once {tmp_path / 'mark'}"
    assert pool.start(WORK[role](words))() == words.encode()
    assert pool.replaced == 1


def test_a_decode_that_hangs_twice_fails(watched: Callable[..., StagePool]) -> None:
    pool = watched("decode")
    with pytest.raises(StageHung, match="of the decode stage"):
        pool.start(decoded("stop"))()
    assert pool.replaced == 2


def test_calls_beside_one_that_hangs_are_answered(watched: Callable[..., StagePool]) -> None:
    pool = watched("decode", 2)
    hangs, others = pool.start(decoded("stop")), [pool.start(decoded(str(n))) for n in range(3)]
    assert [other() for other in others] == [b"0", b"1", b"2"]
    with pytest.raises(StageHung):
        hangs()


def test_a_process_that_hangs_before_it_was_read_is_killed_in_the_middle_of_a_message(
    watched: Callable[..., StagePool],
) -> None:
    pool = watched("decode")
    process = pool.hosts[0].process
    os.kill(process.pid, signal.SIGSTOP)
    assert pool.start(Decode(LARGE, Size(32, 32)))() == LARGE
    assert process.returncode == -signal.SIGKILL


def test_closing_waits_for_no_process_that_hangs(watched: Callable[..., StagePool]) -> None:  # SPEC L-2
    pool = watched("decode")
    waiting, process = pool.start(decoded("stop")), pool.hosts[0].process
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    pool.close()
    with pytest.raises(RuntimeError, match="is closed"):
        waiting()
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_hangs_while_it_loads_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_process, "_MODULE", "tests.unit.engines.diffusion.fake_stage_host")
    stuck = StagePool(HostOrder("stopped", "text"), 1, Patience(load_s=0.5))
    try:
        with pytest.raises(EngineError, match=r"did not load in 0\.5 s, and was killed; raise stage_watchdog\.load_s"):
            stuck.held_bytes()
    finally:
        stuck.close()


LEAVES = """
import os, signal
from headway.engines.diffusion import stage_process
from headway.engines.diffusion.stage_wire import HostOrder
stage_process._MODULE = "tests.unit.engines.diffusion.fake_stage_host"
host = stage_process.StageProcess(HostOrder("folder", "text"))
assert host.ready() is not None
os.kill(host.process.pid, signal.SIGSTOP)
print(host.process.pid, flush=True)
input()
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a stopped process with its parent")
def test_a_process_that_is_stopped_does_not_outlive_the_one_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", LEAVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        gone = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.communicate(b"\n")
            assert select.select([gone], [], [], 60.0)[0] == [gone]
        finally:
            os.close(gone)


def test_a_call_may_take_so_many_times_what_calls_of_its_size_took() -> None:
    pace = Pace(Patience(factor=5.0, floor_s=1.0, load_s=60.0))
    assert pace.limit_s(decoded("x" * 100)) == 60.0  # nothing was seen
    pace.took(Encode(("counted",), counts=True), 1000.0)
    pace.took(decoded("x" * 100), 2.0)
    assert pace.limit_s(decoded("x" * 100)) == pytest.approx(10.0)
    assert pace.limit_s(decoded("x" * 300)) == pytest.approx(30.0)
    assert pace.limit_s(decoded("x")) == pytest.approx(10.0)  # one as large took so long
    pace.took(decoded("x"), 0.01)
    assert pace.limit_s(decoded("x")) == 1.0
    for size in range(101, 300):
        pace.took(decoded("x" * size), 4.0)
    assert pace.limit_s(decoded("x" * 299)) == pytest.approx(20.0)
    assert Pace(None).limit_s(said("x")) is None


class Broken:
    """Stages whose family has a fault that nobody foresaw."""

    def encode(self, prompts: tuple[str, ...]) -> None:
        raise IndexError("index out of range in self")


def test_whatever_a_stage_raises_is_its_answer() -> None:
    reply = stage_host.answer(Broken(), CPU, said("x"))  # type: ignore[arg-type]
    assert reply == Sorry("IndexError: index out of range in self", False)


@pytest.mark.parametrize("is_well", [True, False])
def test_a_process_whose_device_is_lost_ends_so_that_another_takes_its_place(
    is_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_host, "is_well", lambda device: is_well)
    ours, theirs = socket.socketpair()
    with ours:
        stage_wire.send(ours, said("x"))
        ours.shutdown(socket.SHUT_WR)
        with theirs:
            stage_host.serve(theirs, Broken(), CPU)  # type: ignore[arg-type]
        assert (stage_wire.receive(ours) is not None) is is_well
