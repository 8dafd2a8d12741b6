"""Loads a model folder into the parts that an engine of any device is made of."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from headway.core.errors import ConfigError
from headway.core.ports import ModelLimits
from headway.engines.llm.backend import Backend, BackendChoice, Dtype, Kernels
from headway.engines.llm.batch import BatchLayout, PersistentBatch, Place, in_place
from headway.engines.llm.config import ModelConfig, read_config
from headway.engines.llm.kv import KvPool
from headway.engines.llm.model import Decoder
from headway.engines.llm.ops import RopeTables, rows_per_tile
from headway.engines.llm.rope import rope_tables
from headway.engines.llm.sampling import SamplingTable
from headway.engines.llm.sequences import FIRST_SLOTS, SequenceTable
from headway.engines.llm.weights import Checkpoint


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`folder` holds the model, `cache` the compiled kernels. `max_model_len` None: what the model allows.

    Of these padded sizes are captured as graphs: whole decode steps (`graph_rows`), and of any step what lies between
    its attentions (`piece_rows`).
    """

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
    graph_rows: tuple[int, ...] = ()
    piece_rows: tuple[int, ...] = ()


class Loaded(msgspec.Struct, frozen=True):
    backend: Backend
    decoder: Decoder
    kv: KvPool
    sequences: SequenceTable
    sampling: SamplingTable
    layout: BatchLayout
    batch: PersistentBatch
    limits: ModelLimits
    description: str


def load(
    settings: EngineSettings,
    device: torch.device,
    choose: Callable[[ModelConfig, RopeTables, BackendChoice], Backend],
    place: Place = in_place,
    first_slots: int = FIRST_SLOTS,
) -> Loaded:
    """Raises ConfigError where the model, or what was asked for by name, cannot be served."""
    config = read_config(settings.folder)
    length = _length(settings, config)
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
    backend = choose(config, RopeTables(cosines=cosines, sines=sines), choice)
    layout = BatchLayout(rows_max=settings.max_step_tokens, rows_per_tile=rows_per_tile(config), place=place)
    _check_graphs(settings, backend, layout.size)
    with torch.inference_mode():
        decoder = Decoder(config, Checkpoint(settings.folder), backend)
        kv = KvPool(config, settings.kv_blocks, settings.block_size, settings.host_slots, device)
    sequences = SequenceTable(length, -(-length // settings.block_size), settings.kv_blocks, first_slots)
    return Loaded(
        backend=backend,
        decoder=decoder,
        kv=kv,
        sequences=sequences,
        sampling=SamplingTable(config.eos_token_ids),
        layout=layout,
        batch=PersistentBatch(sequences, kv, layout),
        limits=ModelLimits(
            model=settings.model,
            vocab_size=config.vocab,
            max_model_len=length,
            block_size=settings.block_size,
            kv_blocks=settings.kv_blocks,
            kv_bytes_per_block=kv.bytes_per_block,
            host_slots=settings.host_slots,
            layers=config.layers,
            eos_token_ids=config.eos_token_ids,
            dtype=backend.dtype,
            device=device.type,
        ),
        description=f"{settings.model}: {backend.description}",
    )


def _check_graphs(settings: EngineSettings, backend: Backend, rows_max: int) -> None:
    """Raises ConfigError for graphs that cannot be captured; a configuration file was brought down to those before."""
    asked = {
        "graph_rows": (settings.graph_rows, ("decodes", "everything")),
        "piece_rows": (settings.piece_rows, ("pieces", "decodes", "everything")),
    }
    for name, (rows, able) in asked.items():
        if rows and backend.captures not in able:
            raise ConfigError(f"{name} = {list(rows)}: attention on {backend.device} captures {backend.captures}")
        if rows and max(rows) > rows_max:
            raise ConfigError(f"{name} has {max(rows)} rows, max_step_tokens is {settings.max_step_tokens}")


def _length(settings: EngineSettings, config: ModelConfig) -> int:
    if settings.max_model_len is None:
        return config.max_position
    if settings.max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len {settings.max_model_len} exceeds what {settings.model} was trained for"
            f" (max_position_embeddings {config.max_position})"
        )
    return settings.max_model_len
