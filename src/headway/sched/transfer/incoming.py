"""The destination of a hand-off or migration: hold room, acknowledge stages, ask the front to own the request.

Blocks are given back only when no byte can arrive in them any more: the source says so, or is gone.
"""

from enum import StrEnum

import msgspec

from headway.core.effects import Effect, Send, WakeAt
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, TimerId, TransferId
from headway.core.messages import Abort, SequenceState, StageAck, TakeOver
from headway.core.request import LlmRequest
from headway.core.units import Ns


class Stage(StrEnum):
    """Where a transfer is, at its destination."""

    FILLING = "filling"  # waits for copies and state
    ASKED = "asked"  # the front has not answered yet
    LEAVING = "leaving"  # waits for the source to say that no byte can arrive


class Origin(msgspec.Struct, frozen=True):
    """What comes, and from whom."""

    transfer: TransferId
    request: LlmRequest
    epoch: int
    source: NodeId
    front: NodeId


class Patience(msgspec.Struct, frozen=True):
    """How long to wait for the source, and for the front."""

    hold_ns: Ns
    answer_ns: Ns


class Incoming:
    """One transfer."""

    def __init__(self, origin: Origin, patience: Patience) -> None:
        self.origin, self.stage = origin, Stage.FILLING
        self.blocks: list[int] = []
        self.state: SequenceState | None = None
        self.marks: WorkerMarks | None = None
        self.is_void = False  # the KV was lost here; the tokens were not
        self._patience = patience
        self._arrived: dict[int, None] = {}
        self._sent: dict[int, int] = {}  # stage -> tokens of KV up to and with it
        self._acked = 0  # stages, in order

    def begin(self, at_ns: Ns, out: list[Effect]) -> None:
        """Start to wait."""
        wait_ns = self._patience.hold_ns if self.stage is Stage.FILLING else self._patience.answer_ns
        out.append(WakeAt(at_ns + wait_ns, timer_of(self.origin.transfer)))

    def arrived(self, stage: int, out: list[Effect]) -> None:
        """The copy of a stage is readable."""
        self._arrived[stage] = None
        self._acknowledge(out)

    def sent(self, stage: int, tokens: int, out: list[Effect]) -> None:
        """The source has sent a stage."""
        self._sent[stage] = tokens
        self._acknowledge(out)

    def _acknowledge(self, out: list[Effect]) -> None:
        while self._acked in self._arrived and self._acked in self._sent:
            out.append(Send(self.origin.source, StageAck(self.origin.transfer, self._acked)))
            self._acked += 1

    @property
    def computed(self) -> int:
        """Tokens whose KV is here."""
        return self._sent[self._acked - 1] if self._acked else 0

    def handed(self, state: SequenceState, marks: WorkerMarks) -> None:
        """The state of the sequence, after which the source computes no more of it."""
        self.state, self.marks = state, marks

    def ask(self, at_ns: Ns, out: list[Effect]) -> None:
        """Ask the front once the KV of every token but the last is here."""
        state, origin = self.state, self.origin
        if state is None or self.stage is not Stage.FILLING:
            return
        if self.computed < len(state.prompt) + len(state.outputs) - 1:
            return
        self.stage = Stage.ASKED
        self._ask(at_ns, out, state, origin)

    def _ask(self, at_ns: Ns, out: list[Effect], state: SequenceState, origin: Origin) -> None:
        question = TakeOver(state.request, origin.epoch + 1, origin.transfer, len(state.outputs))
        out.append(Send(origin.front, question))
        self.begin(at_ns, out)

    def woke(self, at_ns: Ns, out: list[Effect]) -> None:
        """Nothing came for the whole timeout: ask the front again, or ask the source to give up."""
        if self.stage is Stage.ASKED and self.state is not None:
            self._ask(at_ns, out, self.state, self.origin)
        else:
            self.leave("nothing came in time", out)
            self.begin(at_ns, out)

    def leave(self, reason: str, out: list[Effect]) -> None:
        """Ask the source to stop; it answers with Abort when no byte can arrive."""
        self.stage = Stage.LEAVING
        out.append(Send(self.origin.source, Abort(self.origin.transfer, reason)))


def timer_of(transfer: TransferId) -> TimerId:
    """The timer of a transfer at its destination."""
    return TimerId(f"in:{transfer}")
