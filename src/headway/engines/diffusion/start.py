"""Starts the diffusion engine, with the stages that have processes of their own (SPEC G1)."""

from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import Ns
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.families.protocol import TakesPictures
from headway.engines.diffusion.handed_on import check_chunks
from headway.engines.diffusion.loading import ROLES, LoadSettings, Role, load
from headway.engines.diffusion.stage_pool import Pools, SplitStages, StagePool
from headway.engines.diffusion.stage_process import Patience
from headway.engines.diffusion.stage_wire import HostOrder
from headway.engines.diffusion.stages import LocalStages


class StageCounts(msgspec.Struct, frozen=True):
    """Processes of each stage; 0: it runs in the engine's own. `patience` None: they may hang for ever."""

    text: int = 0
    encode: int = 0
    decode: int = 0
    patience: Patience | None = Patience()


def start_engine(
    settings: LoadSettings, run: RunSettings, counts: StageCounts, clock: Callable[[], Ns]
) -> DiffusionEngine:
    """Load and start all of it. Raises ConfigError for what cannot be loaded."""

    def pool(role: Role) -> StagePool | None:
        count: int = getattr(counts, role)
        if not count:
            return None
        order = HostOrder(
            str(settings.folder), role, settings.device, settings.dtype, settings.threads, run.tile_pixels
        )
        return StagePool(order, count, counts.patience)

    here_too = [role for role in ROLES if not getattr(counts, role)]
    loaded = load(settings, only=("denoise", *here_too))
    check_chunks(loaded.family, run.chunks)
    here = LocalStages(loaded.family, loaded.pipeline.vae, run.tile_pixels)
    if len(here_too) == len(ROLES):
        return DiffusionEngine(loaded, run, clock, here)
    if counts.encode and not isinstance(loaded.family, TakesPictures):
        raise ConfigError(f"encode_processes = {counts.encode}, but {settings.folder} takes no pictures; leave it out")
    with ExitStack() as undo:  # a stage that cannot be started leaves no processes of others
        pools: dict[str, StagePool | None] = {}
        for role in ROLES:
            pools[role] = made = pool(role)
            if made is not None:
                undo.callback(made.close)
        undo.pop_all()
    return DiffusionEngine(loaded, run, clock, SplitStages(here, Pools(**pools), loaded.device))
