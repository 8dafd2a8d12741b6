"""The source of a hand-off or migration: reserve, copy, freeze, hand over; or abort and keep the request (C2, C4).

One stage is in flight at a time: reserved there, pinned and copied here, acknowledged. Pins keep the blocks that a copy
reads, whatever happens to their sequence.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from headway.core.effects import AbortCopy, Effect, Send, StartCopy, WakeAt
from headway.core.ids import NodeId, TimerId, TransferId
from headway.core.messages import Abort, MigrateReserve, StageSent
from headway.core.plans import CopyPlan
from headway.core.request import LlmRequest
from headway.core.units import Ns
from headway.sched.transfer.ports import Sequences


class Phase(StrEnum):
    """Where a transfer is, at its source."""

    IDLE = "idle"  # nothing in flight
    RESERVING = "reserving"
    COPYING = "copying"
    FREEZING = "freezing"  # out of the batch, its open steps still run
    COMMITTED = "committed"  # the destination asks the front
    ABORTING = "aborting"  # a byte may still arrive there
    OVER = "over"


Next = Literal["wait", "freeze", "commit"]


class TransferParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a running request is copied to another replica: in rounds while it decodes, the remainder while it stands."""

    final_blocks: Annotated[int, msgspec.Meta(ge=0)] = 2  # a remainder so small is copied while the request stands
    stages_max: Annotated[int, msgspec.Meta(ge=1)] = 4  # rounds of copying before the request stands
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # without any progress, or without the front's answer
    hold_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # a destination keeps room for a silent source


class Route(msgspec.Struct, frozen=True):
    """What moves, from whom to whom."""

    transfer: TransferId
    request: LlmRequest
    epoch: int
    seq: int
    peer: NodeId
    front: NodeId
    kind: Literal["handoff", "migration"]
    control: NodeId | None = None  # whom to tell how a migration ended


class Progress(msgspec.Struct, frozen=True):
    """The sequence at the source: tokens whose KV is written, and whether it will write no more."""

    written: int
    is_final: bool


class Outgoing:
    """One transfer. `advance` is called after every event of the node; it starts whatever may start."""

    def __init__(
        self, route: Route, params: TransferParams, block_size: int, block_bytes: int, sequences: Sequences
    ) -> None:
        self.route, self.phase = route, Phase.IDLE
        self.frozen_after: int | None = None  # the last step that touches it
        self.frozen_ns: Ns | None = None
        self.is_state_sent = False
        self.bytes = 0
        self.stage = 0
        self._params, self._block_size, self._block_bytes = params, block_size, block_bytes
        self._sequences = sequences
        self._timeout_ns = round(params.timeout_s * 1e9)
        self._granted: list[int] = []
        self._copied = 0  # blocks acknowledged
        self._pinned: tuple[int, ...] = ()
        self._sent_tokens = 0
        self._deadline_ns: Ns | None = None
        self._is_timer_set = False

    # Progress

    def advance(self, progress: Progress, at_ns: Ns, out: list[Effect]) -> Next:
        """Start the next stage, or say what the node must do next."""
        if self.phase is not Phase.IDLE:
            return "wait"
        size = self._block_size
        blocks = -(-progress.written // size) if progress.is_final else progress.written // size
        need = blocks - self._copied
        if progress.is_final and need <= 0:
            return "commit"
        if self.route.kind == "migration" and not progress.is_final:
            if need <= self._params.final_blocks or self.stage >= self._params.stages_max:
                return "freeze"
        elif need <= 0:
            return "wait"
        spare = len(self._granted) - self._copied
        if spare >= need:
            self._copy(need, progress.written, at_ns, out)
        else:
            self._reserve(need - spare, at_ns, out)
        return "wait"

    def _reserve(self, blocks: int, at_ns: Ns, out: list[Effect]) -> None:
        route = self.route
        self.phase = Phase.RESERVING
        self._arm(at_ns, out)
        if route.kind == "migration":
            out.append(
                Send(
                    route.peer,
                    MigrateReserve(route.request, route.epoch, route.transfer, route.front, blocks),
                )
            )

    def _copy(self, count: int, written: int, at_ns: Ns, out: list[Effect]) -> None:
        route, begin = self.route, self._copied
        source = self._sequences.table(route.seq)[begin : begin + count]
        target = tuple(self._granted[begin : begin + count])
        self._sequences.pin_blocks(source)
        self._pinned = source
        self._sent_tokens = min(written, (begin + count) * self._block_size)
        self.phase = Phase.COPYING
        size = count * self._block_bytes
        self.bytes += size
        self._arm(at_ns, out)
        out.append(StartCopy(CopyPlan(route.transfer, self.stage, route.peer, source, target, bytes=size)))

    def granted(self, blocks: tuple[int, ...]) -> bool:
        """Room at the destination; False when there is none."""
        self._granted.extend(blocks)
        if self.phase is Phase.RESERVING:
            self.phase = Phase.IDLE
        return bool(blocks)

    def copied(self, stage: int, ok: bool, out: list[Effect]) -> None:
        """A stage has left, or no byte of it can arrive any more."""
        self._unpin()
        if self.phase is Phase.ABORTING:
            self._over("aborted", out)
        elif ok and self.phase is Phase.COPYING:
            out.append(Send(self.route.peer, StageSent(self.route.transfer, stage, self._sent_tokens)))

    def acknowledged(self, stage: int) -> None:
        """The destination can read a stage."""
        if self.phase is Phase.COPYING and stage == self.stage:
            self._copied = -(-self._sent_tokens // self._block_size)
            self.stage += 1
            self.phase = Phase.IDLE

    def freezing(self, last_step: int, at_ns: Ns) -> None:
        """The sequence is out of the batch once `last_step` is done."""
        self.phase, self.frozen_after, self.frozen_ns = Phase.FREEZING, last_step, at_ns

    def stood_still(self) -> None:
        """Its open steps are done."""
        self.phase = Phase.IDLE

    def committed(self, at_ns: Ns, out: list[Effect]) -> None:
        """The state was handed over, everything is there; the front decides now."""
        self.phase = Phase.COMMITTED
        self._arm(at_ns, out)

    def abort(self, reason: str, out: list[Effect]) -> None:
        """Give up; the request stays here. Over once no byte can arrive at the destination any more."""
        if self._pinned:
            self.phase = Phase.ABORTING
            out.append(AbortCopy(self.route.transfer))
        else:
            self._over(reason, out)

    def peer_lost(self, out: list[Effect]) -> None:
        """The destination is gone: nobody is left to tell."""
        if self._pinned:
            out.append(AbortCopy(self.route.transfer))
            self._unpin()
        self.phase = Phase.OVER

    def _over(self, reason: str, out: list[Effect]) -> None:
        self.phase = Phase.OVER
        out.append(Send(self.route.peer, Abort(self.route.transfer, reason)))

    def _unpin(self) -> None:
        if self._pinned:
            self._sequences.free_blocks(self._pinned)
            self._pinned = ()

    # Time

    def _arm(self, at_ns: Ns, out: list[Effect]) -> None:
        self._deadline_ns = at_ns + self._timeout_ns
        if not self._is_timer_set:
            self._is_timer_set = True
            out.append(WakeAt(self._deadline_ns, timer_of(self.route.transfer)))

    def is_late(self, at_ns: Ns, out: list[Effect]) -> bool:
        """The timer fired: True when nothing moved for the whole timeout."""
        self._is_timer_set = False
        waiting = self.phase in (Phase.RESERVING, Phase.COPYING, Phase.COMMITTED)
        if not waiting or self._deadline_ns is None:
            return False
        if at_ns < self._deadline_ns:
            self._is_timer_set = True
            out.append(WakeAt(self._deadline_ns, timer_of(self.route.transfer)))
            return False
        return True


def timer_of(transfer: TransferId) -> TimerId:
    """The timer of a transfer at its source."""
    return TimerId(f"out:{transfer}")
