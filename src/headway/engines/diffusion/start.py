"""Starts the diffusion engine, with the stages that have processes of their own (SPEC G1)."""

from collections.abc import Callable

import msgspec

from headway.core.units import Ns
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.handed_on import check_chunks
from headway.engines.diffusion.loading import LoadSettings, load
from headway.engines.diffusion.stage_pool import SplitStages, StagePool
from headway.engines.diffusion.stage_process import Patience
from headway.engines.diffusion.stage_wire import HostOrder, Role
from headway.engines.diffusion.stages import LocalStages


class StageCounts(msgspec.Struct, frozen=True):
    """Processes of each stage; 0: it runs in the engine's own. `patience` None: they may hang for ever."""

    text: int = 0
    decode: int = 0
    patience: Patience | None = Patience()


def start_engine(
    settings: LoadSettings, run: RunSettings, counts: StageCounts, clock: Callable[[], Ns]
) -> DiffusionEngine:
    """Load and start all of it. Raises ConfigError for what cannot be loaded."""

    def pool(role: Role, count: int) -> StagePool | None:
        if not count:
            return None
        order = HostOrder(
            str(settings.folder), role, settings.device, settings.dtype, settings.threads, run.tile_pixels
        )
        return StagePool(order, count, counts.patience)

    loaded = load(settings, only="denoise" if counts.text else None)
    check_chunks(loaded.family, run.chunks)
    here = LocalStages(loaded.family, loaded.pipeline.vae, run.tile_pixels)
    if not counts.text + counts.decode:
        return DiffusionEngine(loaded, run, clock, here)
    stages = SplitStages(here, pool("text", counts.text), pool("decode", counts.decode), loaded.device)
    return DiffusionEngine(loaded, run, clock, stages)
