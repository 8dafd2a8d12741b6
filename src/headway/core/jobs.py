"""Durable jobs as JobNode and its surroundings speak of them: rows, and what happened.

Times of the job table outlive a process, so the clock of these events is the table's: nanoseconds since 1970 live,
since the start in a simulation. A write names the attempt that it belongs to; a row that was claimed again, cancelled,
paused or deleted meanwhile answers `RowLost`, and nothing is written.
"""

from typing import Final, Literal

import msgspec

from headway.core.events import TimerFired
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.units import Ns

JobState = Literal[
    "queued",  # never begun
    "preempted",  # begun, and waits to go on
    "text_encode",  # a worker has it, no step is done
    "denoise",
    "vae_decode",
    "upload",
    "completed",
    "failed",
    "cancelled",
    "expired",  # waited too long
    "lost",  # dead letter: every attempt failed
]
WAITING: Final = frozenset[str]({"queued", "preempted"})
OVER: Final = frozenset[str]({"completed", "failed", "cancelled", "expired", "lost"})


class JobRow(msgspec.Struct, frozen=True):
    """What is decided by of one row of the job table. Its content stays with the table."""

    job: RequestId
    tenant: TenantId
    model: ModelId
    steps: int
    stored_ns: Ns
    position: int  # among equals, lower is sooner; grows with every stored job, changed by reordering
    urgency: int = 0
    attempt: int = 0  # claims so far; the token of compare-and-set
    failures: int = 0  # attempts begun since the last checkpoint that have not ended well, a running one included
    not_before_ns: Ns = 0
    begun: int = 0  # steps in its checkpoint
    device_ns: Ns = 0  # spent on those
    estimate_ns: Ns = 0  # device time of the whole; 0: nobody knows
    restarts: int = 0  # times that it began anew because its checkpoint could not be used


OutcomeKind = Literal[
    "completed",
    "failed",  # by the job's own fault: another attempt would fail as well
    "refused",  # no room now: nobody's fault
    "broken",  # by the worker's or the system's fault
    "interrupted",  # stopped because it was asked to
    "unfit",  # its checkpoint cannot be used (other weights, broken, gone): from its beginning it would run
]


class Outcome(msgspec.Struct, frozen=True):
    """How one attempt ended. `device_ns`, `images`, `frames`: of this attempt, for metering."""

    kind: OutcomeKind
    code: str = ""
    message: str = ""
    retry_after_ns: Ns = 0
    device_ns: Ns = 0
    images: int = 0
    frames: int = 0


class HookRow(msgspec.Struct, frozen=True):
    """One message of the webhook outbox."""

    hook: str  # `webhook-id`: receivers drop what they have seen
    attempt: int
    not_before_ns: Ns
    stored_ns: Ns


# What happened


class TableOpened(msgspec.Struct, frozen=True, tag=True):
    """The table is there; jobs may be claimed."""

    at_ns: Ns
    cause: str


class DrainBegan(msgspec.Struct, frozen=True, tag=True):
    """This process ends: claim nothing more, hand back what runs."""

    at_ns: Ns
    cause: str


class SaveAsked(msgspec.Struct, frozen=True, tag=True):
    """What runs here of a model or job, None: of all, is saved at its next step boundary and goes back into the
    line."""

    at_ns: Ns
    cause: str
    model: ModelId | None = None
    job: RequestId | None = None


class JobStored(msgspec.Struct, frozen=True, tag=True):
    """A job of this gateway is in the table, or back in the line (retried, resumed, reordered)."""

    at_ns: Ns
    cause: str
    row: JobRow


class RowsSeen(msgspec.Struct, frozen=True, tag=True):
    """Answers ReadRows, in the table's order. `has_more`: the limit cut it."""

    at_ns: Ns
    cause: str
    rows: tuple[JobRow, ...]
    has_more: bool


class RowClaimed(msgspec.Struct, frozen=True, tag=True):
    """The row is ours until `until_ns`; `row.attempt` is one more than before."""

    at_ns: Ns
    cause: str
    row: JobRow
    until_ns: Ns


class RowKept(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint is written, and the lease runs until `until_ns`."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int
    until_ns: Ns


class RowsKept(msgspec.Struct, frozen=True, tag=True):
    """Answers KeepRows: leases that run until `until_ns`, attempts that have lost their rows, and those of which nobody
    knows, for the table did not answer."""

    at_ns: Ns
    cause: str
    until_ns: Ns
    kept: tuple[tuple[RequestId, int], ...] = ()
    lost: tuple[tuple[RequestId, int], ...] = ()
    unknown: tuple[tuple[RequestId, int], ...] = ()


class RowLost(msgspec.Struct, frozen=True, tag=True):
    """A claim or a write of `attempt` did not hold: somebody else has the row, or it is over, paused or gone."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int


class RowClosed(msgspec.Struct, frozen=True, tag=True):
    """The end of `attempt` is written: completed, failed or handed back."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int


class RowsWatched(msgspec.Struct, frozen=True, tag=True):
    """Answers WatchRows: attempts that have lost their rows, and those that are to be saved and handed back."""

    at_ns: Ns
    cause: str
    lost: tuple[tuple[RequestId, int], ...] = ()
    saves: tuple[tuple[RequestId, int], ...] = ()


class RowUnknown(msgspec.Struct, frozen=True, tag=True):
    """The table did not answer: whether the write holds is not known."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int


class JobProgressed(msgspec.Struct, frozen=True, tag=True):
    """A job that runs here came further."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int
    state: JobState
    done: int


class JobSaved(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint is in the object store under `key`; making and storing it took `took_ns`."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int
    done: int
    key: str
    took_ns: Ns
    device_ns: Ns  # of this attempt so far


class JobEnded(msgspec.Struct, frozen=True, tag=True):
    """What ran here is over, and its outputs are stored. Exactly one per StartJob, also after a StopJob."""

    at_ns: Ns
    cause: str
    job: RequestId
    attempt: int
    outcome: Outcome


class HooksSeen(msgspec.Struct, frozen=True, tag=True):
    """Answers ReadHooks."""

    at_ns: Ns
    cause: str
    rows: tuple[HookRow, ...]


class HookClaimed(msgspec.Struct, frozen=True, tag=True):
    """The message is ours to send; `row.attempt` is one more than before."""

    at_ns: Ns
    cause: str
    row: HookRow


class HookLost(msgspec.Struct, frozen=True, tag=True):
    """Another gateway sends it, or has sent it."""

    at_ns: Ns
    cause: str
    hook: str


class HookAnswered(msgspec.Struct, frozen=True, tag=True):
    """The receiver's status; None: it could not be reached. `is_refused`: the target is not allowed."""

    at_ns: Ns
    cause: str
    hook: str
    attempt: int
    status: int | None
    reason: str
    is_refused: bool = False


JobEvent = (
    TableOpened
    | DrainBegan
    | SaveAsked
    | JobStored
    | RowsSeen
    | RowClaimed
    | RowKept
    | RowsKept
    | RowLost
    | RowClosed
    | RowsWatched
    | RowUnknown
    | JobProgressed
    | JobSaved
    | JobEnded
    | HooksSeen
    | HookClaimed
    | HookLost
    | HookAnswered
    | TimerFired
)
