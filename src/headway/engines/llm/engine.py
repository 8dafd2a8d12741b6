"""Performs StepPlans on a real model on this CPU: one forward pass and one sampling per plan."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from headway.core.errors import EngineError
from headway.core.events import StepDone, Stopped
from headway.core.plans import NewSequence, StepPlan, StepTiming
from headway.core.units import Ns
from headway.engines.llm.backend import choose_backend
from headway.engines.llm.batch import StepInputs
from headway.engines.llm.loading import EngineSettings, load
from headway.engines.llm.sampling import Sampled, sample


class TorchLlmEngine:
    """An `LlmEngine` (core.ports) on the CPU. A step has ended when `run` or `launch` returns."""

    def __init__(self, settings: EngineSettings, clock: Callable[[], Ns] = time.perf_counter_ns) -> None:
        self._clock, self._threads = clock, settings.threads
        loaded = load(settings, torch.device("cpu"), choose_backend)
        self._draw, self._decoder, self._kv = loaded.backend.draw, loaded.decoder, loaded.kv
        self._sequences, self._sampling, self._batch = loaded.sequences, loaded.sampling, loaded.batch
        self._stopped: set[int] = set()
        self._done_ns: Ns | None = None
        self.description, self.limits = loaded.description, loaded.limits

    def launch(self, plan: StepPlan) -> Callable[[], StepDone]:
        """The CPU computes in the caller's thread, so the step has run when this returns."""
        done = self.run(plan)
        return lambda: done

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepDone:
        """Apply the plan, compute its rows, sample. Raises EngineError when torch fails, InvariantError on drift."""
        launched = self._clock()
        _refuse_unsupported(plan)
        if torch.get_num_threads() != self._threads:  # it is a property of the calling thread
            torch.set_num_threads(self._threads)
        was_runnable = self._batch.decoding > 0
        try:
            self._stopped.difference_update(plan.leave)
            self._batch.apply(plan, self._admit)
            inputs = self._batch.inputs(plan)
            started = self._clock()
            logits = self._decoder.forward(inputs.tokens, inputs.rows, self._kv, inputs.sampled)
            sampled = sample(logits, inputs.slots, self._sequences, self._sampling, self._draw)
        except (RuntimeError, MemoryError) as error:
            raise EngineError(f"step {plan.step} failed on {self.limits.model}: {error}") from error
        computed = self._clock()
        self._batch.advance(plan)
        self._sequences.append_tokens(inputs.slots, sampled.tokens)
        stopped = self._stops(inputs, sampled)
        done = self._clock()
        idle = started - self._done_ns if was_runnable and self._done_ns is not None else 0
        self._done_ns = done
        timing = StepTiming(
            launched_ns=launched,
            started_ns=started,
            done_ns=done,
            host_ns=started - launched + done - computed,
            idle_gap_ns=idle,
            padded_rows=inputs.padded_rows,
        )
        return StepDone(
            at_ns=done,
            cause=f"step-{plan.step}",
            step=plan.step,
            seqs=inputs.seqs,
            tokens=tuple(sampled.tokens.tolist()),
            timing=timing,
            stopped=stopped,
            scores=sampled.scores,
        )

    def read_blocks(self, blocks: Sequence[int]) -> bytes:
        return self._kv.read(blocks)

    def launch_read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        """The CPU reads in the caller's thread."""
        found = self._kv.read(blocks)
        return lambda: found

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        with torch.inference_mode():
            self._kv.write(blocks, payload)

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        """The CPU writes in the engine's thread."""
        return partial(self.write_blocks, blocks, payload)

    def close(self) -> None:
        """Give the memory back; the engine cannot run afterwards."""
        del self._decoder, self._kv, self._batch

    def _admit(self, slot: int, new: NewSequence) -> None:
        self._sampling.set(slot, new.sampling)

    def _stops(self, inputs: StepInputs, sampled: Sampled) -> tuple[Stopped, ...]:
        """Rows that sampled one of their stop tokens for the first time; a row may run on until its leave arrives."""
        hits = np.flatnonzero(self._sampling.is_stop(inputs.slots, sampled.tokens)).tolist()
        fresh = [row for row in hits if inputs.seqs[row] not in self._stopped]
        self._stopped.update(inputs.seqs[row] for row in fresh)
        return tuple(
            Stopped(seq=inputs.seqs[row], output=self._sequences.outputs(int(inputs.slots[row]))) for row in fresh
        )


def _refuse_unsupported(plan: StepPlan) -> None:
    if plan.waits:
        raise EngineError(f"step {plan.step} waits for layers of a transfer; this engine receives whole blocks only")
    if plan.graph != "none":
        raise EngineError(f"step {plan.step} asks for graph mode {plan.graph}; this engine has graph = none only")
