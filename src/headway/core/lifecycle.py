"""The life of a request at the FrontNode as a table: illegal transitions raise and change nothing.

`docs/` draws its figure from this table.
"""

from enum import StrEnum
from typing import Final

from headway.core.errors import InvariantError


class RequestState(StrEnum):
    """Where a request is, seen from the FrontNode that owns it."""

    ARRIVED = "arrived"
    QUEUED = "queued"  # admitted, waits in the global queue
    RESERVING = "reserving"  # a decode replica holds room for it (P/D)
    DISPATCHED = "dispatched"  # a replica owns it, no token yet
    STREAMING = "streaming"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Change(StrEnum):
    """What can happen to a request."""

    ADMIT = "admit"
    REFUSE = "refuse"
    RESERVE = "reserve"
    DISPATCH = "dispatch"
    TOKENS = "tokens"
    FINISH = "finish"
    REQUEUE = "requeue"  # its replica was lost or refused; it starts or resumes elsewhere
    FAIL = "fail"
    CANCEL = "cancel"


_S, _C = RequestState, Change

TRANSITIONS: Final[dict[RequestState, dict[Change, RequestState]]] = {
    _S.ARRIVED: {_C.ADMIT: _S.QUEUED, _C.REFUSE: _S.FAILED, _C.CANCEL: _S.CANCELLED},
    _S.QUEUED: {
        _C.DISPATCH: _S.DISPATCHED,
        _C.RESERVE: _S.RESERVING,
        _C.FAIL: _S.FAILED,
        _C.CANCEL: _S.CANCELLED,
    },
    _S.RESERVING: {
        _C.DISPATCH: _S.DISPATCHED,
        _C.REQUEUE: _S.QUEUED,
        _C.FAIL: _S.FAILED,
        _C.CANCEL: _S.CANCELLED,
    },
    _S.DISPATCHED: {
        _C.TOKENS: _S.STREAMING,
        _C.FINISH: _S.FINISHED,
        _C.REQUEUE: _S.QUEUED,
        _C.FAIL: _S.FAILED,
        _C.CANCEL: _S.CANCELLED,
    },
    _S.STREAMING: {
        _C.TOKENS: _S.STREAMING,
        _C.FINISH: _S.FINISHED,
        _C.REQUEUE: _S.QUEUED,
        _C.FAIL: _S.FAILED,
        _C.CANCEL: _S.CANCELLED,
    },
    _S.FINISHED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}


def advance(state: RequestState, change: Change, story: str = "") -> RequestState:
    """Return the next state. Raises InvariantError with the request's story when the table has no such arrow."""
    try:
        return TRANSITIONS[state][change]
    except KeyError:
        raise InvariantError(f"a request cannot {change.value} while {state.value}; story: {story or 'none'}") from None
