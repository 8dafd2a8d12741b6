"""What a pool of stage processes does when one dies, hangs, or is cut off in the middle of a message."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headway.core.errors import EngineError  # noqa: E402
from headway.engines.diffusion import stage_host, stage_pool  # noqa: E402
from headway.engines.diffusion.stage_pool import Encode, HostOrder, Sorry, StagePool  # noqa: E402

CPU = torch.device("cpu")


def said(words: str) -> Encode:
    return Encode((words,))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[StagePool]:
    monkeypatch.setattr(stage_pool, "_MODULE", "tests.unit.engines.diffusion.fake_stage_host")
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
    whole = stage_pool.receive

    def half(link: socket.socket) -> bytes | None:
        monkeypatch.setattr(stage_pool, "receive", whole)
        link.recv(4)
        raise MemoryError

    monkeypatch.setattr(stage_pool, "receive", half)
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


def test_a_process_that_does_not_end_is_killed(pool: StagePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_pool, "_END_S", 0.01)
    process = pool.hosts[0].process
    os.kill(process.pid, signal.SIGSTOP)
    pool.close()
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_dies_of_loading_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_pool, "_MODULE", "tests.unit.engines.diffusion.fake_stage_host")
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
        stage_pool.send(ours, said("x"))
        ours.shutdown(socket.SHUT_WR)
        with theirs:
            stage_host.serve(theirs, Broken(), CPU)  # type: ignore[arg-type]
        assert (stage_pool.receive(ours) is not None) is is_well
