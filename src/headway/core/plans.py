"""What a machine tells its executor to do. Plans are deltas: they name what changed, everything else continues.

A sequence is an `int` minted by the L2 machine of one replica, never used again there.
"""

from typing import Literal

import msgspec

from headway.core.graphs import StepGraph
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.request import DenoiseShape, DiffusionRequest, SamplingParams
from headway.core.units import Ns

StepKind = Literal["prefill", "decode", "mixed", "dummy"]


class NewSequence(msgspec.Struct, frozen=True):
    """A sequence that the executor has not seen. It keeps prompt, outputs and sampling until `leave` names it."""

    seq: int
    request: RequestId
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]  # emitted elsewhere before (resume, hand-off); counted by penalties and positions
    sampling: SamplingParams


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Prefill `count` tokens of `seq` from position `start`. `table` is the whole block table, on admission only.

    When start + count reaches the sequence's known tokens, the row samples (`samples`).
    """

    seq: int
    start: int
    count: int
    samples: bool
    table: tuple[int, ...] = ()


class Join(msgspec.Struct, frozen=True, gc=False):
    """`seq` decodes one token per step from this step on. Its input is `token` (a value known on the host, >= 0),
    or what `step` sampled for it."""

    seq: int
    token: int = -1
    step: int = -1


class Swap(msgspec.Struct, frozen=True, gc=False):
    """Copy block contents between device blocks and host slots, pairwise, before the step computes."""

    seq: int
    device_blocks: tuple[int, ...]
    host_slots: tuple[int, ...]


class LayerWait(msgspec.Struct, frozen=True, gc=False):
    """Before layer `layer` of this step, `transfer` must have delivered that layer (ARCHITECTURE, Hand-off)."""

    transfer: TransferId
    layer: int


class StepPlan(msgspec.Struct, frozen=True):
    """One engine step.

    The executor applies, in field order: leave, preempt, pause, swap_out, new, swap_in, join, grant, chunks; then every
    joined sequence decodes one token and every chunk prefills.
    """

    step: int
    basis_step: int  # last step whose results were folded in
    kind: StepKind
    leave: tuple[int, ...] = ()  # over: forget row, table and tokens
    preempt: tuple[int, ...] = ()  # lose row and table, keep tokens
    pause: tuple[int, ...] = ()  # lose the row, keep the table
    swap_out: tuple[Swap, ...] = ()
    new: tuple[NewSequence, ...] = ()
    swap_in: tuple[Swap, ...] = ()
    join: tuple[Join, ...] = ()
    grant: tuple[tuple[int, int], ...] = ()  # (seq, block): append one block to its table
    chunks: tuple[Chunk, ...] = ()
    after: tuple[tuple[int, int], ...] = ()  # (seq, step): its sampling waits for that step's token on the host
    waits: tuple[LayerWait, ...] = ()
    decodes: int = 0  # rows that decode in this step
    kv_tokens: int = 0  # sum of their context lengths after this step; with `decodes`, the digest against drift
    prefill_tokens: int = 0
    bucket: int = 0  # padded number of rows; 0: not padded
    graph: StepGraph = "none"
    # Not negative: a decode step like the one before, and so many more may follow it that differ in their step, their
    # context and blocks alone. Only engines without content run them unasked (`StepsDone`).
    ahead: int = -1

    @property
    def tokens(self) -> int:
        """Tokens computed in this step, without padding."""
        return self.decodes + self.prefill_tokens


class DenoiseRow(msgspec.Struct, frozen=True, gc=False):
    """Run `count` denoise steps of `seq` from `start` of `total`.

    A row that starts at 0 is encoded first (prompt, references); one that reaches `total` is decoded after its steps.
    """

    seq: int
    start: int
    count: int
    total: int
    pictures: int = 1  # of one prompt, side by side in the batch
    skipped: int = 0  # of `total`, the first, that are counted and not run: an edit begins further down

    @property
    def runs(self) -> int:
        """Steps of this plan that are computed."""
        return max(0, self.start + self.count - max(self.start, self.skipped))

    @property
    def runs_first(self) -> bool:
        """The first of its steps that is computed is in this plan."""
        return self.runs > 0 and self.start <= self.skipped


class NewDenoise(msgspec.Struct, frozen=True):
    """A request that the engine does not hold. It keeps its state until `leave` names it or its last step is done.

    One that was saved to make room, and then left, comes back under the same sequence.

    One with `request.begun` goes on from `request.checkpoint` and is not encoded again where that holds embeddings.
    """

    seq: int
    request: DiffusionRequest


class DenoisePlan(msgspec.Struct, frozen=True):
    """One batch of denoise steps, homogeneous in shape.

    The engine applies, in this order: leave, new; then the steps; then save and show.
    """

    step: int
    basis_step: int
    rows: tuple[DenoiseRow, ...]
    height: int
    width: int
    leave: tuple[int, ...] = ()
    shape: DenoiseShape | None = None  # of every row
    merges: int = 0  # rewrites of all weights before its steps: one adapter out of them, another into them
    new: tuple[NewDenoise, ...] = ()  # among the rows
    save: tuple[int, ...] = ()  # rows whose checkpoint comes back with the results
    show: tuple[int, ...] = ()  # rows whose unfinished pictures come back with the results
    pictures_max: int | None = None  # of one forward pass; a row with more takes several. None: any
    is_cold: bool = False  # no batch of its shape and size has run at this replica


class CopyPlan(msgspec.Struct, frozen=True):
    """Copy blocks of KV to a peer: all layers (`layer` = -1) or one."""

    transfer: TransferId
    stage: int
    peer: NodeId
    src_blocks: tuple[int, ...]
    dst_blocks: tuple[int, ...]
    layer: int = -1
    bytes: int = 0


class StepTiming(msgspec.Struct, frozen=True, gc=False):
    """Where the time of one step went, stamped by the executor."""

    launched_ns: Ns  # the executor took the plan
    started_ns: Ns  # the device began
    done_ns: Ns  # results on the host
    host_ns: Ns = 0  # host part inside the executor (input preparation, sampling results)
    idle_gap_ns: Ns = 0  # device idle before this step although work was runnable
    plan_ns: Ns = 0  # host time of the scheduler for this plan
    overlapped_ns: Ns = 0  # part of plan_ns and host_ns during which the device ran
    padded_rows: int = 0
