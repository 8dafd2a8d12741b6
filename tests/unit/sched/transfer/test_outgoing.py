from tests.unit.sched.router.views import llm

from headway.core.effects import AbortCopy, Effect, Send, StartCopy, WakeAt
from headway.core.ids import NodeId, TransferId
from headway.core.messages import Abort, MigrateReserve, StageSent
from headway.sched.transfer.outgoing import Outgoing, Phase, Progress, Route, TransferParams

SIZE = 16


class Blocks:
    """The source's block table, and which of its blocks are pinned."""

    def __init__(self) -> None:
        self.blocks = tuple(range(100, 140))
        self.pinned: list[int] = []

    def table(self, seq: int) -> tuple[int, ...]:
        return self.blocks

    def pin_blocks(self, blocks: tuple[int, ...]) -> None:
        self.pinned.extend(blocks)

    def free_blocks(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self.pinned.remove(block)


def outgoing(kind: str = "migration") -> tuple[Outgoing, Blocks, list[Effect]]:
    route = Route(TransferId("x"), llm("req-1"), 3, 1, NodeId("rep-b"), NodeId("front-0"), kind)  # type: ignore[arg-type]  # one of the two
    blocks = Blocks()
    return Outgoing(route, TransferParams(final_blocks=1, stages_max=2), SIZE, 64, blocks), blocks, []  # type: ignore[arg-type]  # what a source uses of it


def reserved(out: list[Effect]) -> list[int]:
    return [e.message.blocks for e in out if isinstance(e, Send) and isinstance(e.message, MigrateReserve)]


def copies(out: list[Effect]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(e.plan.src_blocks, e.plan.dst_blocks) for e in out if isinstance(e, StartCopy)]


def stage(transfer: Outgoing, written: int, first: int, out: list[Effect], *, is_final: bool = False) -> None:
    """Reserve, copy and acknowledge one stage."""
    progress = Progress(written, is_final)
    assert transfer.advance(progress, 0, out) == "wait"
    assert transfer.granted(tuple(range(first, first + reserved(out)[-1])))
    assert transfer.advance(progress, 0, out) == "wait"
    transfer.copied(transfer.stage, True, out)
    transfer.acknowledged(transfer.stage)


def test_copies_whole_blocks_while_decoding_then_the_rest_in_the_stop() -> None:  # SPEC C4
    transfer, blocks, out = outgoing()
    stage(transfer, 50, 0, out)
    assert reserved(out) == [3]
    assert transfer.advance(Progress(70, False), 0, out) == "freeze"  # one block more is a small rest
    transfer.freezing(9, 5)
    assert transfer.advance(Progress(70, False), 0, out) == "wait"
    transfer.stood_still()
    stage(transfer, 70, 3, out, is_final=True)
    assert copies(out) == [((100, 101, 102), (0, 1, 2)), ((103, 104), (3, 4))]
    assert transfer.advance(Progress(70, True), 0, out) == "commit"
    tokens = [e.message.tokens for e in out if isinstance(e, Send) and isinstance(e.message, StageSent)]
    assert tokens == [48, 70]
    assert blocks.pinned == []
    assert transfer.bytes == 5 * 64


def test_stops_after_so_many_rounds_however_fast_it_writes() -> None:  # SPEC C4
    transfer, _, out = outgoing()
    for written in (64, 160):
        stage(transfer, written, written, out)
    assert transfer.advance(Progress(400, False), 0, out) == "freeze"


def test_a_prefill_is_copied_as_its_chunks_finish() -> None:  # SPEC C2
    transfer, _, out = outgoing("handoff")
    transfer.granted((0, 1, 2))
    assert transfer.advance(Progress(10, False), 0, out) == "wait"
    assert copies(out) == []
    transfer.advance(Progress(33, False), 0, out)
    transfer.copied(0, True, out)
    transfer.acknowledged(0)
    transfer.advance(Progress(40, True), 0, out)
    assert copies(out) == [((100, 101), (0, 1)), ((102,), (2,))]
    assert reserved(out) == []


def test_blocks_stay_pinned_until_no_byte_can_arrive() -> None:  # SPEC B8
    transfer, blocks, out = outgoing()
    transfer.advance(Progress(50, False), 0, out)
    transfer.granted((0, 1, 2))
    transfer.advance(Progress(50, False), 0, out)
    out.clear()
    transfer.abort("preempted", out)
    assert out == [AbortCopy(TransferId("x"))]
    assert blocks.pinned == [100, 101, 102]
    transfer.copied(0, False, out)
    assert blocks.pinned == []
    assert transfer.phase is Phase.OVER
    assert isinstance(out[-1], Send)
    assert isinstance(out[-1].message, Abort)


def test_a_wait_without_progress_is_late_and_progress_moves_the_deadline() -> None:
    transfer, _, out = outgoing()
    transfer.advance(Progress(50, False), 0, out)
    (due,) = [e.at_ns for e in out if isinstance(e, WakeAt)]
    transfer.granted((0, 1, 2))
    transfer.advance(Progress(50, False), due - 1, out)
    assert not transfer.is_late(due, out)
    again = [e.at_ns for e in out if isinstance(e, WakeAt)][-1]
    assert again > due
    assert transfer.is_late(again, out)


def test_an_acknowledgement_of_another_stage_is_ignored() -> None:
    transfer, _, out = outgoing()
    transfer.advance(Progress(50, False), 0, out)
    transfer.acknowledged(0)
    assert transfer.phase is Phase.RESERVING
    assert not transfer.granted(())
