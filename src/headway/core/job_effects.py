"""What JobNode asks of the job table, of who runs jobs, and of the webhook client (`core.jobs` has the events)."""

import msgspec

from headway.core.effects import WakeAt
from headway.core.ids import RequestId
from headway.core.jobs import JobRow, JobState
from headway.core.units import Ns


class ReadRows(msgspec.Struct, frozen=True, tag=True):
    """Table: the first `limit` rows that may be claimed now, by urgency, then position. Answer: RowsSeen."""

    limit: int


class ClaimRow(msgspec.Struct, frozen=True, tag=True):
    """Table: take the row if it is at `attempt` still and free (no lease, or one that is over). Asked again after no
    answer, it tells what the first asking took. It counts as no failure yet, whatever becomes of it. Answers:
    RowClaimed, RowLost, RowUnknown."""

    job: RequestId
    attempt: int
    until_ns: Ns


class KeepRow(msgspec.Struct, frozen=True):
    """Heartbeat of one attempt, with its progress."""

    job: RequestId
    attempt: int
    state: JobState
    done: int


class KeepRows(msgspec.Struct, frozen=True, tag=True):
    """Table: the heartbeats of everything that runs here, in one transaction; each row is written if it is still ours.
    Answer: RowsKept."""

    rows: tuple[KeepRow, ...]
    until_ns: Ns


class WatchRows(msgspec.Struct, frozen=True, tag=True):
    """Table: what others did to the rows of these attempts, which run here: ended or taken away, or paused, so that
    they are to be saved. Answer: RowsWatched."""

    rows: tuple[tuple[RequestId, int], ...]


class SaveCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Table: the job goes on from here after a crash; its failures are forgotten. Answers: RowKept, RowLost,
    RowUnknown."""

    job: RequestId
    attempt: int
    until_ns: Ns
    done: int
    key: str
    device_ns: Ns


class CompleteRow(msgspec.Struct, frozen=True, tag=True):
    """Table: the job is completed and metered, its webhook is in the outbox, all in one transaction. Answers:
    RowClosed, RowLost, RowUnknown."""

    job: RequestId
    attempt: int
    device_ns: Ns  # of all attempts that counted
    images: int
    frames: int


class FailRow(msgspec.Struct, frozen=True, tag=True):
    """Table: the job is over without a result (`failed`, `lost`). Answers as CompleteRow.

    Where fewer than `failures` count by then, this attempt included, for a gateway that was only slow came back, it is
    handed back instead.
    """

    job: RequestId
    attempt: int
    state: JobState
    code: str
    message: str
    device_ns: Ns = 0  # of all attempts that counted: metered, though it made nothing
    failures: int = 0


class RequeueRow(msgspec.Struct, frozen=True, tag=True):
    """Table: hand the row back; it may be claimed from `not_before_ns` on. Answers as CompleteRow.

    `spares`: this attempt was no failure. `forgets`: it begins anew, without its checkpoint, and what that took is not
    charged; `reason` is kept for its client.
    """

    job: RequestId
    attempt: int
    not_before_ns: Ns
    spares: bool
    reason: str
    forgets: bool = False


class SpareRow(msgspec.Struct, frozen=True, tag=True):
    """Table: this attempt stopped because its row was lost or could not be kept, and was no failure. The row is handed
    back where it is still ours; this attempt counts no more, and no other is forgiven, however often this is asked.
    Answers: RowClosed, RowUnknown."""

    job: RequestId
    attempt: int


class ExpireRows(msgspec.Struct, frozen=True, tag=True):
    """Table: jobs stored before `stored_before_ns` that no worker has begun are over (`expired`), and rows whose lease
    is over run no more, also where nobody may claim them. No answer."""

    stored_before_ns: Ns


class SweepObjects(msgspec.Struct, frozen=True, tag=True):
    """Table and store: delete rows and objects whose time is over, and old answers of idempotency keys. No answer."""


class StartJob(msgspec.Struct, frozen=True, tag=True):
    """Edge: note in the table that the attempt begins, which counts as a failure until it ends well, then submit the
    job's request, from its checkpoint. Exactly one JobEnded answers."""

    row: JobRow
    save_every: int  # steps between checkpoints; 0: none


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """Edge: stop it at the next step boundary; its results count no more. `saves`: once a checkpoint of that step is
    stored, for the row is still ours."""

    job: RequestId
    attempt: int
    saves: bool = False


class ReadHooks(msgspec.Struct, frozen=True, tag=True):
    """Table: the first `limit` messages that are due. Answer: HooksSeen, also of none."""

    limit: int


class ClaimHook(msgspec.Struct, frozen=True, tag=True):
    """Table: take a message that is at `attempt` still; nobody else does before `until_ns`. Answers: HookClaimed,
    HookLost."""

    hook: str
    attempt: int
    until_ns: Ns


class SendHook(msgspec.Struct, frozen=True, tag=True):
    """Webhook client: send it. Answer: HookAnswered."""

    hook: str
    attempt: int


class PostponeHook(msgspec.Struct, frozen=True, tag=True):
    """Table: it was not taken; try again at `not_before_ns`. No answer."""

    hook: str
    attempt: int
    not_before_ns: Ns
    reason: str


class CloseHook(msgspec.Struct, frozen=True, tag=True):
    """Table: it was delivered, or given up. No answer."""

    hook: str
    attempt: int
    is_delivered: bool
    reason: str


JobEffect = (
    ReadRows
    | ClaimRow
    | KeepRows
    | WatchRows
    | SaveCheckpoint
    | CompleteRow
    | FailRow
    | RequeueRow
    | SpareRow
    | ExpireRows
    | SweepObjects
    | StartJob
    | StopJob
    | ReadHooks
    | ClaimHook
    | SendHook
    | PostponeHook
    | CloseHook
    | WakeAt
)
