"""Performs StepPlans on a real model: one forward pass and one sampling per plan."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch

from headway.core.errors import ConfigError, EngineError
from headway.core.events import StepDone, Stopped
from headway.core.plans import NewSequence, StepPlan, StepTiming
from headway.core.ports import ModelLimits
from headway.core.units import Ns
from headway.engines.llm.backend import BackendChoice, Dtype, Kernels, choose_backend
from headway.engines.llm.batch import BatchLayout, PersistentBatch, StepInputs
from headway.engines.llm.config import ModelConfig, read_config
from headway.engines.llm.kv import KvPool
from headway.engines.llm.model import Decoder
from headway.engines.llm.ops import RopeTables, rows_per_tile
from headway.engines.llm.rope import rope_tables
from headway.engines.llm.sampling import Sampled, SamplingTable, sample
from headway.engines.llm.sequences import SequenceTable
from headway.engines.llm.weights import Checkpoint


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`folder` holds the model, `cache` the compiled kernels. `max_model_len` None: what the model allows."""

    folder: Path
    model: str
    cache: Path
    kv_blocks: int
    block_size: int = 16
    host_slots: int = 0
    max_model_len: int | None = None
    max_step_tokens: int = 2048  # rows of a step, padding included
    threads: int = 1
    dtype: Dtype = "auto"
    kernels: Kernels = "auto"
    device: Literal["cpu", "cuda"] = "cpu"


class TorchLlmEngine:
    """An `LlmEngine` (core.ports) on this machine. A step has ended when `run` or `launch` returns."""

    def __init__(self, settings: EngineSettings, clock: Callable[[], Ns] = time.perf_counter_ns) -> None:
        config = read_config(settings.folder)
        length = _length(settings, config)
        device = _device(settings)
        self._clock, self._threads = clock, settings.threads
        torch.set_num_threads(settings.threads)
        cosines, sines = rope_tables(config, length + 1, device)
        choice = BackendChoice(
            dtype=settings.dtype,
            kernels=settings.kernels,
            threads=settings.threads,
            block_size=settings.block_size,
            cache=settings.cache,
            device=device,
        )
        backend = choose_backend(config, RopeTables(cosines=cosines, sines=sines), choice)
        self._draw = backend.draw
        with torch.inference_mode():
            self._decoder = Decoder(config, Checkpoint(settings.folder), backend)
            self._kv = KvPool(config, settings.kv_blocks, settings.block_size, settings.host_slots, device)
        self._sequences = SequenceTable(length, -(-length // settings.block_size), settings.kv_blocks)
        self._sampling = SamplingTable(config.eos_token_ids)
        layout = BatchLayout(rows_max=settings.max_step_tokens, rows_per_tile=rows_per_tile(config), device=device)
        self._batch = PersistentBatch(self._sequences, self._kv, layout)
        self._stopped: set[int] = set()
        self._done_ns: Ns | None = None
        self.description = f"{settings.model}: {backend.description}"
        self.limits = ModelLimits(
            model=settings.model,
            vocab_size=config.vocab,
            max_model_len=length,
            block_size=settings.block_size,
            kv_blocks=settings.kv_blocks,
            kv_bytes_per_block=self._kv.bytes_per_block,
            host_slots=settings.host_slots,
            layers=config.layers,
            eos_token_ids=config.eos_token_ids,
            dtype=backend.dtype,
            device=settings.device,
        )

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
            sampled = sample(logits.cpu(), inputs.slots, self._sequences, self._sampling, self._draw)
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

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        with torch.inference_mode():
            self._kv.write(blocks, payload)

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


def _length(settings: EngineSettings, config: ModelConfig) -> int:
    if settings.max_model_len is None:
        return config.max_position
    if settings.max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len {settings.max_model_len} exceeds what {settings.model} was trained for"
            f" (max_position_embeddings {config.max_position})"
        )
    return settings.max_model_len


def _device(settings: EngineSettings) -> torch.device:
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = cuda: torch sees no CUDA device; use device = cpu, or install a torch with CUDA")
    return torch.device(settings.device)


def _refuse_unsupported(plan: StepPlan) -> None:
    if plan.waits:
        raise EngineError(f"step {plan.step} waits for layers of a transfer; this engine receives whole blocks only")
    if plan.graph != "none":
        raise EngineError(f"step {plan.step} asks for graph mode {plan.graph}; this engine has graph = none only")
