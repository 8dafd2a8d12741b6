"""What `headway doctor` says of the replicas of a running server: whether device memory is at rest after the warm-up,
what they prepare and how far that is, and what of it failed."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.cli.servers import ServerError, ask

_ANSWERS_S: Final = 5.0
_SHOWN: Final = 4  # of queued sizes, and of failures
_MIB: Final = 1 << 20


class Preparation(msgspec.Struct, frozen=True):
    """An entry of `preparing`."""

    size: str
    frames: int
    batch: int
    state: str
    slices_done: int
    slices: int
    waiting: int


class Failure(msgspec.Struct, frozen=True):
    """An entry of `preparing_failed`."""

    size: str
    frames: int
    batch: int
    error: str
    age_ms: float


class ReplicaState(msgspec.Struct, frozen=True):
    """What is read of an entry of `GET /v1/replicas`."""

    id: str
    state: str
    models: tuple[str, ...] = ()
    settle_passes: int | None = None
    reserved_bytes: int | None = None
    preparing: tuple[Preparation, ...] = ()
    preparing_failed: tuple[Failure, ...] = ()
    reason: str | None = None


class _Listing(msgspec.Struct):
    data: tuple[ReplicaState, ...]


def replicas_at(url: str, api_key: str | None) -> tuple[tuple[ReplicaState, ...], str]:
    """The replicas of a server, or why it does not say."""
    try:
        return msgspec.json.decode(ask(url, "/v1/replicas", api_key, timeout_s=_ANSWERS_S), type=_Listing).data, ""
    except ServerError as error:
        return (), str(error)
    except msgspec.DecodeError as error:
        return (), f"{url}/v1/replicas is no list of replicas: {error}"


def replica_words(replica: ReplicaState) -> tuple[str, str, str]:
    """State, finding and advice."""
    said = [f"{replica.id}{f' ({replica.models[0]})' if replica.models else ''} is {replica.state}"]
    said += [replica.reason] if replica.reason else []
    said += [words for words in (_settled(replica), _preparing(replica.preparing)) if words]
    failed = replica.preparing_failed
    advice = "; ".join(_failed(one) for one in failed[-_SHOWN:])
    if failed[:-_SHOWN]:
        advice += f"; and {len(failed) - _SHOWN} before"
    return "note" if failed or replica.state == "lost" else "ok", "; ".join(said), advice


def _settled(replica: ReplicaState) -> str:
    if replica.settle_passes is None:
        return ""
    if not replica.settle_passes:
        return "no device allocator that could settle"
    held = "" if replica.reserved_bytes is None else f" with {replica.reserved_bytes / _MIB:.0f} MiB"
    return f"its allocator settled at repeated pass {replica.settle_passes}{held}"


def _preparing(entries: Sequence[Preparation]) -> str:
    running = [one for one in entries if one.state == "running"]
    queued = [one for one in entries if one.state != "running"]
    said = [f"{_what(one)}, {one.slices_done} of {one.slices} slices{_who(one)}" for one in running]
    said += [f"{_what(one)}, queued{_who(one)}" for one in queued[:_SHOWN]]
    said += [f"{len(queued) - _SHOWN} more queued"] if queued[_SHOWN:] else []
    return f"prepares {' | '.join(said)}" if said else ""


def _failed(one: Failure) -> str:
    return f"preparing {_what(one)} failed {one.age_ms / 1000:.0f} s ago: {one.error}"


def _what(one: Preparation | Failure) -> str:
    frames = f", {one.frames} frames" if one.frames > 1 else ""
    return f"{one.size}{frames}" + (f" by {one.batch}" if one.batch > 1 else "")


def _who(one: Preparation) -> str:
    return f" ({one.waiting} wait for it)" if one.waiting else ""
