"""What workers say to each other while a request moves: hand-off (P/D) and migration."""

import msgspec

from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.request import Request, SamplingParams, Slo
from headway.core.units import Ns


class SequenceState(msgspec.Struct, frozen=True):
    """Everything that makes a sequence go on exactly elsewhere: sampling is counter-based on (seed, position)."""

    request: RequestId
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    sampling: SamplingParams
    slo: Slo
    urgency: int
    arrived_ns: Ns


class Handover(msgspec.Struct, frozen=True, tag=True):
    """P -> D: the prefill is done; first token and state. Layers follow as copies."""

    request: RequestId
    epoch: int
    transfer: TransferId
    state: SequenceState
    marks: WorkerMarks


class Release(msgspec.Struct, frozen=True, tag=True):
    """D -> P, or destination -> source: the copy is no longer needed; free it."""

    transfer: TransferId


class MigrateReserve(msgspec.Struct, frozen=True, tag=True):
    """Source -> destination: hold room for a running request."""

    request: Request
    epoch: int
    transfer: TransferId
    front: NodeId
    blocks: int


class MigrateReserved(msgspec.Struct, frozen=True, tag=True):
    """Destination -> source: room is held, or `blocks` is empty and the migration ends."""

    transfer: TransferId
    blocks: tuple[int, ...]


class StageSent(msgspec.Struct, frozen=True, tag=True):
    """Source -> destination: stage `stage` was copied; it covers `tokens` tokens of KV."""

    transfer: TransferId
    stage: int
    tokens: int


class StageAck(msgspec.Struct, frozen=True, tag=True):
    """Destination -> source: stage `stage` is readable."""

    transfer: TransferId
    stage: int


class Commit(msgspec.Struct, frozen=True, tag=True):
    """Source -> destination: the request is frozen; this is its state, the last delta is copied."""

    transfer: TransferId
    state: SequenceState
    next_index: int
    marks: WorkerMarks


class PrefixPull(msgspec.Struct, frozen=True):
    """Before the prefill, fetch the KV of the prompt's first `tokens` from `source`, as far as it is not here."""

    transfer: TransferId
    source: NodeId
    tokens: int


class PrefixAsk(msgspec.Struct, frozen=True, tag=True):
    """Puller -> source: copy the cached blocks of the prompt from block `first` on into these `blocks`."""

    transfer: TransferId
    request: Request
    first: int
    blocks: tuple[int, ...]
    block_bytes: int  # a source whose blocks have another size sends nothing


class PrefixSent(msgspec.Struct, frozen=True, tag=True):
    """Source -> puller: so many blocks were copied; 0: none, and none will come."""

    transfer: TransferId
    blocks: int


Pulling = PrefixAsk | PrefixSent


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Either side: the transfer ends without an owner change."""

    transfer: TransferId
    reason: str


class MigrationEnded(msgspec.Struct, frozen=True, tag=True):
    """Worker -> control."""

    request: RequestId
    transfer: TransferId
    moved: bool
    reason: str
