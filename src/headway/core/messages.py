"""What nodes say to each other: frozen, tagged by class name; every one about a request carries its epoch."""

from typing import Literal

import msgspec

from headway.core.artifacts import Artifacts as Artifacts
from headway.core.artifacts import Progress as Progress
from headway.core.decisions import Decision
from headway.core.evidence import WorkerMarks
from headway.core.handover import Abort as Abort
from headway.core.handover import Commit as Commit
from headway.core.handover import Handover as Handover
from headway.core.handover import MigrateReserve as MigrateReserve
from headway.core.handover import MigrateReserved as MigrateReserved
from headway.core.handover import MigrationEnded as MigrationEnded
from headway.core.handover import PrefixPull as PrefixPull
from headway.core.handover import Pulling as Pulling
from headway.core.handover import Release as Release
from headway.core.handover import SequenceState as SequenceState
from headway.core.handover import StageAck as StageAck
from headway.core.handover import StageSent as StageSent
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.reports import ReplicaReport
from headway.core.request import FinishReason, Request
from headway.core.shape_moves import Prepare as Prepare
from headway.core.shape_moves import Reshape as Reshape
from headway.core.shape_moves import Reshaped as Reshaped
from headway.core.units import Ns


class TokenScores(msgspec.Struct, frozen=True):
    """Log-probability of one emitted token and the best alternatives, best first."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


# Front -> worker


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Run this request as `epoch`. `emitted` tokens were already streamed (resume). `target`: hand the KV to that
    replica after the prefill (P/D); `transfer` names the reservation there. `pull`: fetch the beginning of the prompt
    from another replica first."""

    request: Request
    epoch: int
    emitted: tuple[int, ...] = ()
    target: NodeId | None = None
    transfer: TransferId | None = None
    number: int = 0  # of this front's Submits to this replica; reports say how many they have seen
    pull: PrefixPull | None = None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop the request now; blocks return within one step. `if_waiting`: only if nothing of it was scheduled yet.
    `saves`: a picture or video that runs stops once its next step is done and its checkpoint was sent."""

    request: RequestId
    epoch: int
    reason: FinishReason = FinishReason.CANCELLED
    if_waiting: bool = False
    saves: bool = False


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """P/D: hold KV room at the decode replica for a request that another one will prefill."""

    request: Request
    epoch: int
    transfer: TransferId
    prefill: NodeId


class TakeOverAck(msgspec.Struct, frozen=True, tag=True):
    """The front accepted (or refused) an owner change; sent to both sides. The owner changes here and nowhere else."""

    request: RequestId
    epoch: int
    transfer: TransferId
    accepted: bool


class WhatDoYouHold(msgspec.Struct, frozen=True, tag=True):
    """A restarted front asks; the worker answers with Holding."""

    number: int


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every unreferenced cached block."""

    number: int


# Worker -> front


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The replica owns the request as `epoch`; it will end with exactly one Finished."""

    request: RequestId
    epoch: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The replica cannot run the request: `unservable` (never) or `draining`, `full` (not now)."""

    request: RequestId
    epoch: int
    code: str
    message: str
    retry_after_ms: int | None = None  # told by an upstream


class Begun(msgspec.Struct, frozen=True, tag=True):
    """An upstream's answer has begun to reach the client: from here the request cannot be run elsewhere."""

    request: RequestId
    epoch: int


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """Tokens of one step for this front: parallel arrays, one token per row; `indices` count outputs from 0."""

    requests: tuple[RequestId, ...]
    epochs: tuple[int, ...]
    indices: tuple[int, ...]
    tokens: tuple[int, ...]
    step: int
    scores: tuple[TokenScores | None, ...] = ()  # empty: nobody asked
    cached: tuple[tuple[int, int], ...] = ()  # (row, prefix hit tokens), with a first output
    # Without content (`sched/beats.py`): `left` no longer follow, who does gets `beat`, and then come the rows.
    left: tuple[RequestId, ...] = ()
    beat: int = -1  # a token for everybody who follows; negative: none
    follow: tuple[int, ...] = ()  # rows whose next tokens come with the beats
    times: tuple[Ns, ...] = ()  # of several beats, told late: when each was sent; as it arrives, when it would have


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The request is over at this replica; every token before it was sent."""

    request: RequestId
    epoch: int
    reason: FinishReason
    output_tokens: int
    marks: WorkerMarks
    error: str | None = None
    health: Literal["success", "neutral", "fault"] = "success"  # what the breaker learns; neutral: 4xx, 429, 503
    prompt_tokens: int | None = None  # as the upstream counted them
    cached_tokens: int | None = None
    code: str | None = None  # of an error that is its own (`bad_input`, `out_of_memory`): it is not run again


class Reserved(msgspec.Struct, frozen=True, tag=True):
    """P/D: room is held; blocks to copy into."""

    request: RequestId
    epoch: int
    transfer: TransferId
    blocks: tuple[int, ...]


class TakeOver(msgspec.Struct, frozen=True, tag=True):
    """The destination of a hand-off or migration wants to own the request from `next_index` on, as `epoch`."""

    request: RequestId
    epoch: int
    transfer: TransferId
    next_index: int


class Report(msgspec.Struct, frozen=True, tag=True):
    """A replica's state, to fronts and control."""

    report: ReplicaReport
    decisions: tuple[Decision, ...] = ()
    earlier: tuple[Ns, ...] = ()  # when others like it came


class Probed(msgspec.Struct, frozen=True, tag=True):
    """One health check of the sender's upstream."""

    ok: bool
    reason: str  # what was asked and what came back; for people


class Held(msgspec.Struct, frozen=True):
    """One request that a worker holds."""

    request: RequestId
    epoch: int
    next_index: int
    tokens: int = 0  # whose KV is resident; 0: none is, or nobody counts them


class Holding(msgspec.Struct, frozen=True, tag=True):
    """Everything the worker holds, in answer to WhatDoYouHold."""

    number: int
    held: tuple[Held, ...]


# Control -> worker


class Migrate(msgspec.Struct, frozen=True, tag=True):
    """Move one running request to `destination`."""

    request: RequestId
    destination: NodeId
    transfer: TransferId


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Accept nothing new; finish or migrate what runs."""

    reason: str


class Undrain(msgspec.Struct, frozen=True, tag=True):
    """Accept requests again."""

    reason: str


# Between fronts and control: one budget for several fronts


class Stated(msgspec.Struct, frozen=True, tag=True):
    """Front -> control: what it holds of levels, what it has given back of rates, and what it asks for."""

    number: int  # of this front's statements
    seen: int  # number of the last Share that it used
    at_ns: Ns
    held: tuple[tuple[str, int], ...] = ()
    back: tuple[tuple[str, int], ...] = ()  # totals since its start
    wants: tuple[tuple[str, int], ...] = ()  # all of it, or nothing


class Grant(msgspec.Struct, frozen=True):
    """What one key of a Stated gets, and how the whole stands then."""

    key: str
    asked: int
    amount: int
    wait_ns: Ns  # until it could be there; 0: it was
    left: int = 0
    reset_ns: Ns = 0  # until the whole is full again


class Share(msgspec.Struct, frozen=True, tag=True):
    """Control -> front: the answer to a Stated. Nothing that was lent is used past `until_ns`."""

    number: int
    answers: int
    until_ns: Ns
    grants: tuple[Grant, ...] = ()


Message = (
    Submit
    | Cancel
    | Reserve
    | TakeOverAck
    | WhatDoYouHold
    | ResetPrefixCache
    | Accepted
    | Begun
    | Refused
    | Tokens
    | Finished
    | Progress
    | Artifacts
    | Reserved
    | TakeOver
    | Report
    | Probed
    | Holding
    | Handover
    | Release
    | MigrateReserve
    | MigrateReserved
    | StageSent
    | StageAck
    | Commit
    | Abort
    | Pulling
    | Migrate
    | Prepare
    | Reshape
    | Reshaped
    | Drain
    | Undrain
    | MigrationEnded
    | Stated
    | Share
)
