"""Frames between processes: four bytes of length, then msgpack; FIFO, bounded, strict.

A frame that is too long, cut off or not of these types is the peer's fault: `WireError`, and the link is closed.
"""

from typing import Final

import msgspec

from headway.core.decisions import Decision
from headway.core.errors import HeadwayError
from headway.core.events import Proposal
from headway.core.evidence import EvidenceRecord
from headway.core.ids import GroupId, NodeId, RequestId, TenantId, TransferId
from headway.core.ledger import AccountView
from headway.core.messages import Message
from headway.core.plans import CopyPlan, StepTiming
from headway.core.ports import ModelLimits
from headway.core.reports import GarbageFigures, StepCoefficients
from headway.core.request import TextRequest
from headway.core.units import Ns
from headway.live.settling import Settled

FRAME_BYTES_MAX: Final = 64 << 20
LENGTH_BYTES: Final = 4


class WireError(HeadwayError):
    """The peer broke the protocol of the link."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub, first frame: who connects."""

    node: NodeId
    incarnation: int


class Phase(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub: a phase of loading began (`done` = 0) or moved on; `done` in [0, 1]."""

    name: str
    done: float
    at_ns: Ns
    note: str = ""

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.name}{': ' if self.note else ''}{self.note}"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub: loaded and warm; its node takes events from now on. `limits` is None for diffusion."""

    limits: ModelLimits | None
    load_ns: Ns
    step_cost: StepCoefficients | None = None  # as its warm-up measured it; None for diffusion
    settled: Settled | None = None  # how its device's allocator came to rest; None: it was not warmed up


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub, last frame: why the process ends."""

    reason: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub: the main thread is alive, and what its garbage collector took."""

    at_ns: Ns
    garbage: GarbageFigures | None = None


class Envelope(msgspec.Struct, frozen=True, tag=True):
    """A message from node to node."""

    src: NodeId
    dst: NodeId
    message: Message


class Blocks(msgspec.Struct, frozen=True, tag=True):
    """KV of one copy on its way to the peer's blocks; `last` closes the stage."""

    src: NodeId
    dst: NodeId
    transfer: TransferId
    stage: int
    layer: int
    blocks: tuple[int, ...]
    payload: bytes
    last: bool


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub: its contribution to the all-gather of one group step."""

    group: GroupId
    step: int
    proposal: Proposal
    deadline_ns: Ns


class Gathered(msgspec.Struct, frozen=True, tag=True):
    """Hub -> replica: everyone's contribution."""

    group: GroupId
    step: int
    proposals: dict[NodeId, Proposal]


class Joined(msgspec.Struct, frozen=True, tag=True):
    """Hub -> replica: a peer is there."""

    node: NodeId
    incarnation: int


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Hub -> replica: a peer is gone."""

    node: NodeId
    incarnation: int


class StepSpan(msgspec.Struct, frozen=True, gc=False):
    """One engine step for the trace."""

    step: int
    kind: str
    decodes: int
    kv_tokens: int  # context of the decoding rows
    prefill_tokens: int
    prefill_pairs: int  # query-key pairs of the chunks
    planned_ns: Ns  # when planning began
    timing: StepTiming
    chunks: int = 0
    chunk_context: int = 0  # sum over chunks of start + count


class Spans(msgspec.Struct, frozen=True, tag=True):
    """Replica -> hub: steps since the last such frame."""

    steps: tuple[StepSpan, ...]


class Named(msgspec.Struct, frozen=True):
    """What a public id stands for."""

    public_id: str
    tenant: TenantId
    request: RequestId
    trace_id: str


class News(msgspec.Struct, frozen=True, tag=True):
    """Gateway process -> main: what happened there since the last such frame, and how it stands."""

    named: tuple[Named, ...] = ()
    decisions: tuple[Decision, ...] = ()
    ended: tuple[tuple[EvidenceRecord, TextRequest | None], ...] = ()
    tokens: tuple[tuple[str, int, int], ...] = ()  # model, prompt and output tokens of what was answered
    refused: int = 0  # at the edge, for what they asked
    waiting: int = 0
    in_flight: int = 0
    accounts: tuple[AccountView, ...] = ()
    recoveries: tuple[tuple[str, int], ...] = ()  # since its start
    at_ns: Ns = 0


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Hub -> replica: leave now, running work is void."""


Frame = (
    Hello | Phase | Ready | Failed | Beat | Envelope | Blocks | Gather | Gathered | Joined | Lost | Spans | News | Stop
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """Length and body of one frame. Raises WireError when it is longer than a reader accepts."""
    body = _encoder.encode(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise WireError(f"a {type(frame).__name__} of {len(body)} bytes; the limit is {FRAME_BYTES_MAX}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(head: bytes | memoryview) -> int:
    """What the length of a frame announces. Raises WireError when it is longer than a reader accepts."""
    length = int.from_bytes(head, "big")
    if length > FRAME_BYTES_MAX:
        raise WireError(f"the peer announces a frame of {length} bytes; the limit is {FRAME_BYTES_MAX}")
    return length


def decode(body: bytes | memoryview) -> Frame:
    """The frame that a body is. Raises WireError."""
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WireError(f"the peer sent a frame that is none of ours: {error}") from error


def copies(plan: CopyPlan, block_bytes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split a copy into (source blocks, destination blocks) that fit a frame each; an empty copy is one empty part."""
    per_frame = max(1, (FRAME_BYTES_MAX // 2) // max(1, block_bytes))
    starts = range(0, len(plan.src_blocks), per_frame) if plan.src_blocks else range(1)
    return [(plan.src_blocks[at : at + per_frame], plan.dst_blocks[at : at + per_frame]) for at in starts]
