"""What must be done. Effects are data; only drivers perform them."""

import msgspec

from headway.core.artifacts import Made
from headway.core.decisions import Decision
from headway.core.events import Proposal
from headway.core.evidence import EvidenceRecord, WorkerMarks
from headway.core.ids import GroupId, ModelId, NodeId, RequestId, TimerId, TransferId
from headway.core.messages import Message, TokenScores
from headway.core.plans import CopyPlan, DenoisePlan, StepPlan
from headway.core.request import FinishReason
from headway.core.units import Ns


class Send(msgspec.Struct, frozen=True, tag=True):
    """Deliver `message` to node `dst`, FIFO per pair."""

    dst: NodeId
    message: Message


class WakeAt(msgspec.Struct, frozen=True, tag=True):
    """Fire `timer` at `at_ns` or as soon after as possible."""

    at_ns: Ns
    timer: TimerId
    replaces: bool = False  # what was asked of this timer before does not come


class RunStep(msgspec.Struct, frozen=True, tag=True):
    """Executor: run this plan after those already handed over."""

    plan: StepPlan


class RunDenoise(msgspec.Struct, frozen=True, tag=True):
    """Executor: run this denoise batch."""

    plan: DenoisePlan


class StartCopy(msgspec.Struct, frozen=True, tag=True):
    """Transport: copy blocks to the peer. Every step that writes them is done."""

    plan: CopyPlan


class AbortCopy(msgspec.Struct, frozen=True, tag=True):
    """Transport: stop the transfer; CopyDone(ok=False) answers when no byte can arrive any more."""

    transfer: TransferId


class Propose(msgspec.Struct, frozen=True, tag=True):
    """Group: contribute to the all-gather of `step`."""

    group: GroupId
    step: int
    proposal: Proposal
    deadline_ns: Ns


class Deliver(msgspec.Struct, frozen=True, tag=True):
    """Edge: tokens `index`.. of the client's stream, in order, without gap."""

    request: RequestId
    index: int
    tokens: tuple[int, ...]
    scores: tuple[TokenScores | None, ...] = ()
    follows: NodeId | None = None  # after these it gets a token with each Beat of this replica


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Edge without content: a token for every stream that follows `replica`, until an End or a Deliver of its own."""

    replica: NodeId
    token: int
    times: tuple[Ns, ...] = ()  # when each of several came; empty: one, now


class Show(msgspec.Struct, frozen=True, tag=True):
    """Edge: a diffusion request has come so far, and this was made for it; in order, none twice."""

    request: RequestId
    done: int  # denoise steps, of `total`
    total: int
    made: tuple[Made, ...] = ()


class ErrorOut(msgspec.Struct, frozen=True):
    """An error in OpenAI's shape, before it is rendered."""

    status: int
    code: str | None
    message: str
    retry_after_ms: int | None = None
    param: str | None = None
    waiting_helps: bool = True  # False: what is asked for cannot be had later either


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """Edge: the request was let in with less than it asked for; comes before its first Deliver."""

    request: RequestId
    degraded: tuple[tuple[str, int | str], ...]  # what was taken away, and what is left: ("max_tokens", 100)


class End(msgspec.Struct, frozen=True, tag=True):
    """Edge: the request is over. Exactly one per RequestArrived."""

    request: RequestId
    reason: FinishReason
    error: ErrorOut | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    transfer_to: ModelId | None = None  # the error stands unless the edge submits it again there
    marks: WorkerMarks | None = None  # of a diffusion request: what its answer says of device time


class Restart(msgspec.Struct, frozen=True, tag=True):
    """Driver: end this process once what was sent is out; its supervisor starts another incarnation."""

    reason: str


class Record(msgspec.Struct, frozen=True, tag=True):
    """Telemetry: keep a decision or an evidence record."""

    entry: Decision | EvidenceRecord


Effect = (
    Send
    | WakeAt
    | RunStep
    | RunDenoise
    | StartCopy
    | AbortCopy
    | Propose
    | Deliver
    | Beat
    | Show
    | Admitted
    | End
    | Record
    | Restart
)
