"""What a front knows of one request: life cycle, owner and epoch, tokens, stamps, and its story."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from headway.core.decisions import Decision
from headway.core.effects import Admitted
from headway.core.events import RequestArrived, StreamClosed
from headway.core.evidence import WorkerMarks
from headway.core.ids import ModelId, NodeId, TransferId
from headway.core.lifecycle import TRANSITIONS, Change, RequestState, advance
from headway.core.messages import TakeOver
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns
from headway.sched.admission.protocol import Lessened, lessened
from headway.sched.beats import Row
from headway.sched.foresight import due
from headway.sched.shown import Shown

STORY_LENGTH: Final = 32


class Leg(msgspec.Struct, frozen=True):
    """The second replica of a hedged request, under an epoch of its own."""

    node: NodeId
    epoch: int
    sent_ns: Ns


class Tracked(Row):
    """One request from its arrival to its evidence."""

    def __init__(self, event: RequestArrived) -> None:
        super().__init__()
        self.request: Request = event.request
        self.arrival = event
        self.state = RequestState.ARRIVED
        self.owner: NodeId | None = None  # the only node whose tokens count, under `epoch`
        self.epoch = 0
        self.epochs = 0  # the highest that a dispatch was given; a hand-off may have gone on from there
        self.hedge: Leg | None = None
        self.sends = 0  # dispatches, hedges not counted
        self.has_answered = False  # some dispatch of it brought a first token
        self.sent_ns: Ns = 0  # the last of them
        self.failed_at: dict[NodeId, int] = {}  # replicas that failed it, with their incarnation
        self.full_ns: Ns | None = None  # when it was first refused as full
        self.bare_ns: Ns | None = None  # since when no replica could take it, as its timer knows
        self.stopped_ns: Ns = 0  # its owner was told to stop
        self.prefill: NodeId | None = None  # P/D: will prefill once room is held
        self.decode: NodeId | None = None  # P/D: holds room for it
        self.transfer: TransferId | None = None
        self.pull: tuple[NodeId, int] | None = None  # the next dispatch fetches so many tokens there first
        self.taken: TransferId | None = None  # by which its owner took it over; None: it was dispatched there
        self.take_over: tuple[NodeId, TakeOver] | None = None  # waits until the cursor reaches its next_index
        self.output_due = due(event.request)  # tokens; with one more, the predicted length is corrected
        self.beat_due = 0  # the beat that brings that one
        self.attempts = 0
        self.dispatched_ns: Ns | None = None
        self.changed_ns: Ns = event.at_ns  # its state, last
        self.transfer_to: ModelId | None = None  # refused here; the edge may submit it again there
        self.prefill_due_ns: Ns = 0  # when its first token was forecast, at its dispatch
        self.cold_ns: Ns | None = None  # it arrived here while no replica served its model
        self.model_load_ns: Ns = 0
        self.first_token_ns: Ns | None = None
        self.resumed_ns: Ns | None = None  # dispatched again after tokens were streamed; no token since
        self.waited_ns: Ns = 0  # from the last token of a lost replica to the next dispatch
        self.recomputed_ns: Ns = 0  # from there to the next token
        self.cached_tokens = 0  # of the stay that sent the first token
        self.shown = Shown(event.request) if isinstance(event.request, DiffusionRequest) else None
        self.is_over = False  # End was said
        self.is_leaving = False  # its replica was told to save it and let it go
        self.is_moving = False  # the same, and another one goes on with it
        self.moved_ns: Ns = 0  # device time at replicas that it moved away from
        self.is_worker_done = True  # no replica will send Finished
        self.closed: StreamClosed | None = None
        self.marks: WorkerMarks | None = None
        self.outcome = "ok"
        self.output_tokens = 0
        self.prompt_told: int | None = None  # prompt tokens as its upstream counted them
        self.decisions: list[Decision] = []
        self.story: list[str] = []

    @property
    def emitted(self) -> list[int]:
        """What was streamed to the client."""
        return self.tokens

    @property
    def is_streaming(self) -> bool:
        """Its answer has begun at its present owner."""
        return self.state is RequestState.STREAMING

    def next_epoch(self) -> int:
        """Begin the epoch of a dispatch."""
        self.epoch = self.epochs = max(self.epoch, self.epochs) + 1
        self.taken = None
        self.is_moving = False
        return self.epoch

    def with_moves(self, marks: WorkerMarks | None) -> WorkerMarks | None:
        """Return the marks of its last replica with the device time of those that it moved away from."""
        if marks is None or not self.moved_ns:
            return marks
        return replace(marks, device_ns=marks.device_ns + self.moved_ns)

    def tell(self, at_ns: Ns, line: str) -> None:
        """Add a line to the story that errors print; the oldest lines fall out."""
        self.story.append(f"{at_ns}: {line}")
        if len(self.story) > STORY_LENGTH:
            del self.story[1]

    def degrade(self, left: Sequence[tuple[Lessened, int | str]]) -> Admitted:
        """Let it have less than it asked for; return what the client is told."""
        self.request = lessened(self.request, left)
        if isinstance(self.request, DiffusionRequest):
            self.shown = Shown(self.request)
        return Admitted(self.request.id, tuple(left))

    def change(self, change: Change, at_ns: Ns, why: str) -> None:
        """Move along the life-cycle table. Raises InvariantError with the story."""
        self.tell(at_ns, f"{change} ({why})")
        self.changed_ns = at_ns
        following = TRANSITIONS[self.state].get(change)
        if following is None:  # the story is put together for those who need it
            following = advance(self.state, change, f"{self.request.id}: {'; '.join(self.story)}")
        self.state = following
