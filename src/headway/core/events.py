"""What happened. Every event carries `at_ns` (stamped by the receiver) and names its cause."""

from collections.abc import Mapping

import msgspec

from headway.core.artifacts import RowFailed, RowMade, StageTimes
from headway.core.ids import GroupId, ModelId, NodeId, RequestId, TimerId, TransferId
from headway.core.messages import Message, TokenScores
from headway.core.plans import StepTiming
from headway.core.request import DenoiseShape, Request
from headway.core.units import Ns


class RequestArrived(msgspec.Struct, frozen=True, tag=True):
    """FrontNode: a validated request from the edge."""

    at_ns: Ns
    cause: str
    request: Request
    received_ns: Ns  # when the edge saw the request's first byte
    body_ns: Ns  # when it had the last byte of the body


class ClientGone(msgspec.Struct, frozen=True, tag=True):
    """FrontNode: the client left, or asked to cancel. `saves`: of a picture or video that runs, first take a checkpoint
    at its next step boundary."""

    at_ns: Ns
    cause: str
    request: RequestId
    saves: bool = False


class TextStopped(msgspec.Struct, frozen=True, tag=True):
    """FrontNode: the edge found a stop string; the text ends inside token `index` (0-based)."""

    at_ns: Ns
    cause: str
    request: RequestId
    index: int


class StreamClosed(msgspec.Struct, frozen=True, tag=True):
    """FrontNode: the edge handed the last byte of the answer to the transport. Completes the evidence."""

    at_ns: Ns
    cause: str
    request: RequestId
    first_token_ns: Ns | None  # first byte of text handed to the transport
    input_bytes: int
    stored_ns: Ns = 0  # of the time since its End: its outputs were stored as objects


class MessageArrived(msgspec.Struct, frozen=True, tag=True):
    """Any node: a message from `src`, FIFO per pair."""

    at_ns: Ns
    cause: str
    src: NodeId
    message: Message


class TimerFired(msgspec.Struct, frozen=True, tag=True):
    """Any node: a WakeAt came due. A late or unknown timer id is ignored."""

    at_ns: Ns
    cause: str
    timer: TimerId
    earlier: tuple[Ns, ...] = ()  # when it would have fired before, had anybody cared; in simulation only


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """Any node: the driver lost the peer; its accounts are closed by incarnation."""

    at_ns: Ns
    cause: str
    node: NodeId
    incarnation: int


class PeerJoined(msgspec.Struct, frozen=True, tag=True):
    """Front and Control: a peer is there (started, or restarted with a higher incarnation)."""

    at_ns: Ns
    cause: str
    node: NodeId
    incarnation: int


class PeerStarting(msgspec.Struct, frozen=True, tag=True):
    """Front: a replica of `model` starts and will join as this incarnation, or be lost; told again with every phase.
    The cause says in words what it does."""

    at_ns: Ns
    cause: str
    node: NodeId
    incarnation: int
    model: ModelId


class Stopped(msgspec.Struct, frozen=True, gc=False):
    """The token that this step sampled for `seq` ended it (`stop`: end-of-sequence or a stop token id)."""

    seq: int
    output: tuple[int, ...] | None = None  # all sampled tokens, when known: its full blocks become cacheable


class WarmAsked(msgspec.Struct, frozen=True, tag=True):
    """Control: an operator wants shapes to be run at a replica before anybody asks for them, or they were warm before
    it was started anew."""

    at_ns: Ns
    cause: str
    node: NodeId
    shapes: tuple[DenoiseShape, ...]
    batches: tuple[int, ...] = ()  # most pictures of a pass, of each shape; empty: of its largest batch


class DrainAsked(msgspec.Struct, frozen=True, tag=True):
    """Control: an operator takes a replica out, or brings it back. It holds until the opposite is asked, restarts
    included."""

    at_ns: Ns
    cause: str
    node: NodeId
    is_draining: bool


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """WorkerNode: step `step` is done. Parallel arrays: `tokens[i]` was sampled for `seqs[i]`."""

    at_ns: Ns
    cause: str
    step: int
    seqs: tuple[int, ...]
    tokens: tuple[int, ...]
    timing: StepTiming
    stopped: tuple[Stopped, ...] = ()
    scores: tuple[TokenScores | None, ...] = ()  # empty: nobody asked
    # Not negative: what every row sampled that decoded and did not join in this step; `seqs` names the others only.
    beat: int = -1


class StepsDone(msgspec.Struct, frozen=True, tag=True):
    """WorkerNode: steps from `first` on are done, one timing each, as plans that had them `ahead` allowed.

    Nobody stopped, and every row sampled `beat` in each. As many more steps as `planned_ns` says are handed over and
    open: step i of them was planned at `planned_ns[i]`.
    """

    at_ns: Ns
    cause: str
    first: int
    timings: tuple[StepTiming, ...]
    planned_ns: tuple[Ns, ...]
    beat: int


class DenoiseDone(msgspec.Struct, frozen=True, tag=True):
    """Diffusion WorkerNode: the denoise plan `step` is done. `failed` rows are over, whatever `made` says of them."""

    at_ns: Ns
    cause: str
    step: int
    timing: StepTiming
    stages: StageTimes | None = None  # None: the engine does not tell them apart
    made: tuple[RowMade, ...] = ()
    failed: tuple[RowFailed, ...] = ()
    cached_bytes: int = 0  # of prompt embeddings that the engine keeps


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """WorkerNode: the executor failed in `step`; every length after it is void (fatal for the batch)."""

    at_ns: Ns
    cause: str
    step: int
    error: str


class CopyDone(msgspec.Struct, frozen=True, tag=True):
    """WorkerNode: one stage or layer of a transfer left (source side) this node's memory."""

    at_ns: Ns
    cause: str
    transfer: TransferId
    stage: int
    layer: int
    ok: bool = True


class CopyArrived(msgspec.Struct, frozen=True, tag=True):
    """WorkerNode: one stage or layer of a transfer is readable here (destination side)."""

    at_ns: Ns
    cause: str
    transfer: TransferId
    stage: int
    layer: int


class Proposal(msgspec.Struct, frozen=True):
    """What one rank would do in a step, before the group agrees (ARCHITECTURE, Groups)."""

    kind: str  # prefill, decode, mixed, idle
    tokens: int
    padded: int
    longest_prefill: int = 0
    can_overlap: bool = True
    mode: str = "none"


class Proposals(msgspec.Struct, frozen=True, tag=True):
    """WorkerNode in a group: everyone's proposal for `step`, the same at every rank."""

    at_ns: Ns
    cause: str
    group: GroupId
    step: int
    proposals: Mapping[NodeId, Proposal]


Event = (
    RequestArrived
    | ClientGone
    | TextStopped
    | StreamClosed
    | MessageArrived
    | TimerFired
    | PeerLost
    | PeerJoined
    | PeerStarting
    | DrainAsked
    | WarmAsked
    | StepDone
    | StepsDone
    | DenoiseDone
    | StepFailed
    | CopyDone
    | CopyArrived
    | Proposals
)
