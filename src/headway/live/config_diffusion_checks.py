"""What cannot be served of `[[diffusion]]`, naming the key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headway.core.artifacts import CARRIED_BYTES_MAX
from headway.core.errors import ConfigError
from headway.cost.diffusion_belief import DenoiseCost
from headway.live.adapter_paths import check_adapter
from headway.live.chunk_sizes import check_chunks
from headway.live.config_diffusion import DiffusionSettings, believed_cost, probes_of
from headway.live.config_findings import Findings
from headway.live.config_layers import Faults
from headway.live.pipeline_sizes import check_size
from headway.sched.diffusion.params import check, order_policy

_PICTURE_BYTES: Final = 3.375  # of a pixel that no encoder makes smaller: a byte per colour, and an eighth more


def check_diffusion(models: Sequence[DiffusionSettings], *, moves: bool = False) -> None:
    """Raise ConfigError for what cannot be served, naming the key. `moves`: replicas may change their pool."""
    if moves and all(len(model.pools) < 2 for model in models):
        raise ConfigError("fleet.shape_pools moves replicas between diffusion[].pools, and no model has two of them")
    found = Findings()
    for number, model in enumerate(models):
        key = f"diffusion[{number}]"
        for look in (_check_stages, _check_numbers, _check_watchdogs, _check_scheduler):
            found.of(look, key, model)
        is_able = model.folder is not None and not model.fps
        found.of(check_adapter, key, model.ip_adapter, model.image_encoder, is_able=is_able)
        found.of(check_chunks, key, model.context_frames, model.chunk_frames, model.fps)
        # A folder tells the size that is left out, and sizes what the pools are for.
        if found.of(_check_folder, key, model) and found.of(_check_sizes, key, model):
            found.of(_check_pools, key, model)
    found.end()


def sizes_told(models: Sequence[DiffusionSettings]) -> list[tuple[str, str, str]]:
    """Key, value and reason of every usual size that was left out, for people."""
    whys = {True: "the first of sizes", False: "what its pipeline makes, within pixels_max"}
    left_out = [(n, model) for n, model in enumerate(models) if model.size is None and model.folder is not None]
    return [(f"diffusion[{n}].size", model.usual_size, whys[bool(model.sizes)]) for n, model in left_out]


def _check_folder(key: str, model: DiffusionSettings) -> bool:
    if (model.engine == "torch") is (model.folder is None):
        hint = "name the folder of a diffusers pipeline" if model.folder is None else "leave it out"
        raise ConfigError(f"{key}.folder = {model.folder!r} with {key}.engine = {model.engine!r}: {hint}")
    if model.folder is not None and not (Path(model.folder).expanduser() / "model_index.json").is_file():
        raise ConfigError(f"{key}.folder = {model.folder!r} holds no diffusers pipeline (model_index.json)")
    return True


def _check_sizes(key: str, model: DiffusionSettings) -> bool:
    found = Findings()
    for name, sizes in (("size", (model.usual_size,)), ("sizes", model.sizes)):
        for size in sizes:
            found.of(check_size, f"{key}.{name}", size, model.multiple, model.side_min, model.pixels_max)
    found.end()
    if model.sizes and model.usual_size not in model.sizes:
        raise ConfigError(f"{key}.size = {model.size!r} is none of {key}.sizes; add it there, or name one of them")
    return True


def _check_numbers(key: str, model: DiffusionSettings) -> None:
    texts: list[str] = []
    if not model.fps and model.pixels_max * _PICTURE_BYTES > CARRIED_BYTES_MAX:
        texts.append(
            f"{key}.pixels_max = {model.pixels_max}: a picture of so many may have more bytes than processes hand "
            f"each other ({CARRIED_BYTES_MAX}); lower it to {int(CARRIED_BYTES_MAX / _PICTURE_BYTES)}"
        )
    if model.steps > model.steps_max:
        texts.append(f"{key}.steps = {model.steps} is above {key}.steps_max = {model.steps_max}")
    if model.masks and not model.edits:
        texts.append(f"{key}.masks needs {key}.edits: a mask says where a picture is edited")
    if not model.guidance_scale and model.guided_passes == 1:
        texts.append(f"{key}.guidance_scale = 0 is an input of the model ({key}.guided_passes = 1) and must be above 0")
    if not model.seconds:
        texts.append(f"{key}.seconds is empty; name at least one length")
    if texts:
        raise Faults(tuple(texts))


def _check_scheduler(key: str, model: DiffusionSettings) -> None:
    belief = DenoiseCost(believed_cost(model))
    try:
        check(model.scheduler, belief)
        order_policy(model.scheduler, belief)
    except ConfigError as error:
        raise ConfigError(f"in {key}.scheduler: {error}") from None


def _check_pools(key: str, model: DiffusionSettings) -> None:
    """Every replica is in one pool, and every named shape is taken by one."""
    if not model.pools:
        return
    count = sum(pool.replicas for pool in model.pools)
    if count != model.replicas:
        raise ConfigError(f"{key} have {count} replicas and replicas = {model.replicas}; let them add up")
    if model.scheduler.pixels_min or model.scheduler.pixels_max is not None:
        raise ConfigError(f"{key} and scheduler.pixels_min, pixels_max say the same thing; leave the latter out")
    for pool in model.pools:
        if pool.pixels_max is not None and pool.pixels_min > pool.pixels_max:
            raise ConfigError(f"{key}: pixels_min = {pool.pixels_min} is above pixels_max = {pool.pixels_max}")
    for shape, _ in probes_of(model).batches:
        if not any(pool.takes(shape) for pool in model.pools):
            size = f"{shape.width}x{shape.height}, {shape.frames} frame(s), {shape.pixels} pixels"
            raise ConfigError(f"{key}: none takes {size}, which size, sizes and seconds name")


def _check_stages(key: str, model: DiffusionSettings) -> None:
    """There is a model with such a stage."""
    if model.folder is None and model.stage_processes:
        raise ConfigError(
            f"{key}.text_processes, encode_processes and decode_processes need {key}.engine = 'torch': stages of a "
            "model"
        )
    if model.encode_processes and (model.fps or not model.edits):
        why = f"{key}.fps makes videos, which begin from no picture" if model.fps else f"{key}.edits = false"
        raise ConfigError(f"{key}.encode_processes = {model.encode_processes} has nothing to encode: {why}")


def _check_watchdogs(key: str, model: DiffusionSettings) -> None:
    """Two tries of a stage fit into a plan."""
    plan, stage = model.scheduler.watchdog, model.stage_watchdog
    if plan is not None and stage is not None and 2 * stage.factor > plan.factor:
        raise ConfigError(
            f"{key}.stage_watchdog.factor = {stage.factor} is above half of {key}.scheduler.watchdog.factor = "
            f"{plan.factor}: a plan would count as stuck while its stage is tried again; lower the former"
        )
