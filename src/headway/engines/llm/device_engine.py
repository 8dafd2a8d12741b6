"""Performs StepPlans on a device that works on by itself: a step is queued, and its results are fetched later.

Tokens of a step that is not fetched yet are placeholders on the host; the device reads them from its own table of last
tokens. Rows whose sampling reads earlier tokens on the host (penalties, masks, log-probabilities) hold up the launch of
their step until the steps before it are over.  # never run on a device
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from headway.core.errors import EngineError
from headway.core.events import StepDone, Stopped
from headway.core.messages import TokenScores
from headway.core.plans import NewSequence, StepPlan, StepTiming
from headway.core.ports import Reserved
from headway.core.units import Ns
from headway.engines.llm.backend import device_backend
from headway.engines.llm.batch import LEAST_ROWS, StepInputs
from headway.engines.llm.device import Device
from headway.engines.llm.graphs import DecodeGraphs, PieceGraphs
from headway.engines.llm.leases import Lease, LeasePool
from headway.engines.llm.loading import EngineSettings, load
from headway.engines.llm.open_steps import Launched, OpenStep
from headway.engines.llm.sampling import sample, sample_where_logits_lie
from headway.engines.llm.staging import Staging
from headway.engines.llm.standing import PLACEHOLDER, StandingRows
from headway.engines.llm.transfers import KvTransfers

# Tables on the device move when there are more sequences than slots, and graphs are captured again then.
_FIRST_SLOTS = 512
_ROW_BYTES = 128  # of the arrays that a step brings for each row, tables apart


class DeviceLlmEngine:
    """An `LlmEngine` (core.ports). `launch` is called from one thread, what it returns from any, in order."""

    def __init__(
        self, settings: EngineSettings, device: Device, clock: Callable[[], Ns] = time.perf_counter_ns
    ) -> None:
        self._clock, self._device = clock, device
        self._staging = Staging(device)
        loaded = load(
            settings, device.where, partial(device_backend, fork=device.fork), self._staging.place, _FIRST_SLOTS
        )
        self._draw, self._decoder, self._kv = loaded.backend.draw, loaded.decoder, loaded.kv
        self._sequences, self._sampling, self._batch = loaded.sequences, loaded.sampling, loaded.batch
        self.limits = loaded.limits
        self.leases = LeasePool(device, self._sequences.tables.nbytes + loaded.layout.size * _ROW_BYTES)
        self._mirror = threading.Lock()  # the host's view of sequences: launch and fetch both write it
        self._open: deque[OpenStep] = deque()
        self._stopped: set[int] = set()
        self._done_ns: Ns = 0
        with torch.inference_mode():
            self.transfers = KvTransfers(device, self._kv, settings.host_slots)
            self._batch.swaps = self.transfers
            self._rows = StandingRows(self._staging, self._sequences, loaded.layout.size, self._kv.scratch_slot)
            if settings.graph_rows:
                self._rows.reserve_logits(settings.graph_rows, self.limits.vocab_size)
            self._graphs = DecodeGraphs(device, self._captured, self._sequences.tables.shape[1])
            pieces_max = max(settings.piece_rows, default=0)
            self._pieces = PieceGraphs(
                device, self._decoder, self._kv, self._rows.first, max(pieces_max, LEAST_ROWS) if pieces_max else 0
            )
            for graphs, sizes in ((self._graphs, settings.graph_rows), (self._pieces, settings.piece_rows)):
                for rows in sorted({max(rows, LEAST_ROWS) for rows in sizes}, reverse=True):
                    graphs.capture(rows)
        self._moves = self._staging.moves
        self.description = (
            f"{loaded.description}; whole decode steps captured for {self._graphs.rows or 'no'} rows, pieces between"
            f" attentions for {self._pieces.rows or 'no'} rows"
        )

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], StepDone]:
        """Queue the step; the returned call waits for its results. Raises EngineError, InvariantError on drift."""
        launched = self._clock()
        self._refuse_unsupported(plan)
        step: OpenStep | None = None
        try:
            lease = self.leases.lease(f"step-{plan.step}")
            self._staging.begin(lease)
            with self._mirror:
                was_runnable = self._batch.decoding > 0
                self._stopped.difference_update(plan.leave)
                self._batch.apply(plan, self._admit)
                self._settle_chunks(plan)
                inputs = self._batch.inputs(plan)
            logits = self._logits(plan, inputs)
            step = self._sampled(plan, inputs, logits, lease, Launched(launched, was_runnable))
        except (RuntimeError, MemoryError) as error:
            self._void()
            raise EngineError(f"step {plan.step} failed on {self.limits.model}: {error}") from error
        finally:
            if step is None:
                self.leases.end(f"step-{plan.step}")
        return partial(self._result, step)

    def run(self, plan: StepPlan) -> StepDone:
        return self.launch(plan)()

    def read_blocks(self, blocks: Sequence[int]) -> bytes:
        return self.launch_read(blocks)()

    @torch.inference_mode()
    def launch_read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        """Queue a read behind the steps launched so far; the returned call waits for it, in any thread, once."""
        try:
            return self.transfers.read(blocks)
        except RuntimeError as error:
            raise EngineError(f"KV of {len(blocks)} blocks cannot be read: {error}") from error

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        """Queue a write behind the steps launched so far and before those launched from here on."""
        self.stage_write(blocks, payload)()

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        """Put the bytes into pinned memory, in any thread; the returned call, in the launching one, queues them."""
        refused = f"KV of {len(blocks)} blocks cannot be written"

        @torch.inference_mode()
        def queue() -> None:
            try:
                begin()
            except RuntimeError as error:
                raise EngineError(f"{refused}: {error}") from error

        try:
            begin = self.transfers.stage_write(blocks, payload)
        except RuntimeError as error:
            raise EngineError(f"{refused}: {error}") from error
        return queue

    def reserved(self) -> Reserved | None:
        return self._device.reserved()

    def close(self) -> None:
        """Give the memory back; the engine cannot run afterwards."""
        self._void()
        del self._graphs, self._pieces, self._decoder, self._kv, self._batch, self._staging

    def _admit(self, slot: int, new: NewSequence) -> None:
        self._sampling.set(slot, new.sampling)

    def _captured(self, count: int, blocks: int) -> torch.Tensor:
        """A decode step over the standing buffers."""
        logits = self._decoder.forward(*self._rows.first(count, blocks), self._kv, self._rows.numbers[:count])
        return self._staging.view("logits", count).copy_(logits)

    def _logits(self, plan: StepPlan, inputs: StepInputs) -> torch.Tensor:
        self._rows.grow()
        if self._staging.moves != self._moves:
            self._rows.idle()
            self._graphs.recapture()
            self._pieces.recapture()
            self._moves = self._staging.moves
            inputs = self._batch.inputs(plan)
        self._staging.land()
        self.transfers.hold_step(partial(self._batch.touched, inputs))
        if plan.graph == "none":
            known = self._rows.known(inputs.tokens, inputs.rows)
            return self._decoder.forward(known, inputs.rows, self._kv, inputs.sampled)
        rows = len(inputs.tokens)
        graphs = self._graphs if plan.graph == "full" else self._pieces
        if rows not in graphs:
            raise EngineError(
                f"step {plan.step} asks for graph mode {plan.graph} with {rows} rows; captured are"
                f" {graphs.rows or 'none'}"
            )
        if plan.graph == "piecewise":
            return self._pieces.run(inputs.rows, inputs.sampled)
        return self._graphs.replay(rows, inputs.rows.spans.blocks)[: len(inputs.slots)]

    def _sampled(
        self, plan: StepPlan, inputs: StepInputs, logits: torch.Tensor, lease: Lease, launched: Launched
    ) -> OpenStep:
        """Queue the choice of tokens and their way to the host, and let lengths grow."""
        slots, upload = inputs.slots, self._staging.upload
        scores: tuple[TokenScores | None, ...] = ()
        with self._mirror:
            if self._sampling.is_history[slots].any():
                self._settle()
                found = sample(logits.cpu(), slots, self._sequences, self._sampling, self._draw)
                tokens, scores = upload(found.tokens), found.scores
            else:
                tokens = sample_where_logits_lie(logits, slots, self._sequences, self._sampling, upload)
            self._rows.last[upload(slots)] = tokens
            self._batch.advance(plan)
            step = OpenStep(
                plan=plan,
                inputs=inputs,
                positions=self._sequences.known[slots],
                tenancy=self._sequences.tenancy[slots],
                tokens=lease.fetch(tokens),
                scores=scores,
                launched=launched,
                queued_ns=self._clock(),
                lease=lease,
            )
            self._sequences.append_tokens(slots, np.full(len(slots), PLACEHOLDER, np.int32))
            self._open.append(step)
        return step

    def _result(self, step: OpenStep) -> StepDone:
        try:
            step.tokens()  # wait without the lock: the next step is launched meanwhile
            with self._mirror:
                while step.done is None and self._open:
                    self._fold(self._open.popleft())
        except RuntimeError as error:
            self._void()
            raise EngineError(f"step {step.plan.step} failed on {self.limits.model}: {error}") from error
        if step.done is None:
            raise EngineError(f"step {step.plan.step} was queued before a step that failed")
        return step.done

    def _void(self) -> None:
        """No step that is queued has results any more."""
        with self._mirror:
            self._open.clear()
            self.leases.end_all()
            self.transfers.end_all()

    def _settle_chunks(self, plan: StepPlan) -> None:
        """A chunk that recomputes outputs needs them on the host."""
        for chunk in plan.chunks:
            known = self._sequences.tokens[self._sequences.slot(chunk.seq), chunk.start : chunk.start + chunk.count]
            if (known == PLACEHOLDER).any():
                self._settle()

    def _settle(self) -> None:
        while self._open:
            self._fold(self._open.popleft())

    def _fold(self, step: OpenStep) -> None:
        """Put the tokens where the placeholders are, but for sequences whose slot has another tenant by now."""
        tokens = step.tokens().astype(np.int32)
        step.lease.end()
        self._stopped.difference_update(step.plan.leave)  # again: steps before it were folded since its launch
        fetched = self._clock()
        slots = step.inputs.slots
        alive = self._sequences.tenancy[slots] == step.tenancy
        self._sequences.tokens[slots[alive], step.positions[alive]] = tokens[alive]
        stopped = self._stops(step, tokens, alive)
        started = max(step.queued_ns, self._done_ns)
        hidden = max(0, min(step.queued_ns, self._done_ns) - step.launched.at_ns)
        idle = max(0, step.queued_ns - self._done_ns) if self._done_ns and step.launched.was_runnable else 0
        self._done_ns = done = self._clock()
        timing = StepTiming(
            launched_ns=step.launched.at_ns,
            started_ns=started,  # when it was queued, or when the device came free
            done_ns=done,
            host_ns=step.queued_ns - step.launched.at_ns + done - fetched,
            idle_gap_ns=idle,
            overlapped_ns=hidden,
            padded_rows=step.inputs.padded_rows,
        )
        step.done = StepDone(
            at_ns=done,
            cause=f"step-{step.plan.step}",
            step=step.plan.step,
            seqs=step.inputs.seqs,
            tokens=tuple(tokens.tolist()),
            timing=timing,
            stopped=stopped,
            scores=step.scores,
        )

    def _stops(
        self, step: OpenStep, tokens: npt.NDArray[np.int32], alive: npt.NDArray[np.bool_]
    ) -> tuple[Stopped, ...]:
        """As on a CPU; the outputs end with this step's token, whatever was queued since."""
        inputs, found = step.inputs, []
        for row in np.flatnonzero(alive & self._sampling.is_stop(inputs.slots, tokens)).tolist():
            seq, slot = inputs.seqs[row], int(inputs.slots[row])
            if seq not in self._stopped:
                self._stopped.add(seq)
                found.append(Stopped(seq=seq, output=self._sequences.outputs_to(slot, int(step.positions[row]))))
        return tuple(found)

    def _refuse_unsupported(self, plan: StepPlan) -> None:
        if plan.waits:
            raise EngineError(
                f"step {plan.step} waits for layers of a transfer; this engine receives whole blocks only"
            )
        if plan.graph == "full" and plan.chunks:
            raise EngineError(
                f"step {plan.step} asks for graph mode full with {len(plan.chunks)} chunks; attention here is captured"
                " in steps of decodes only"
            )
