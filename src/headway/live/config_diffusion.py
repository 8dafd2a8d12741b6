"""Models that make pictures and videos: `[[diffusion]]`. What they take of a client, and how their replicas compute."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from headway.adapters.gateway.pictures.sizes import frames_of
from headway.adapters.gateway.ports import ModelCard, PictureCard
from headway.core.artifacts import CARRIED_BYTES_MAX
from headway.core.errors import ConfigError
from headway.core.reports import DenoiseCoefficients, DenoiseMemory
from headway.core.request import DenoiseShape
from headway.cost.diffusion_belief import DenoiseCost
from headway.engines.synthetic.denoise import DenoiserParams
from headway.live.adapter_paths import absolute, check_adapter
from headway.live.chunk_sizes import check_chunks, chunks_of
from headway.live.denoise_warmup import Probes
from headway.live.pipeline_sizes import check_size, default_size, sides_of
from headway.live.size_pools import SizePool
from headway.live.spec import DiffusionSpec, PipelineSpec
from headway.sched.diffusion.params import DiffusionParams, check, largest_batch, order_policy
from headway.sched.diffusion.warming import Stock

_PICTURE_BYTES: Final = 3.375  # of a pixel that no encoder makes smaller: a byte per colour, and an eighth more
_SYNTHETIC_SIZE: Final = "64x64"
_PATCH: Final = 16  # pixels of a token of the synthetic engine, each way
_MIB: Final = 1 << 20

Count = Annotated[int, msgspec.Meta(ge=1)]
Frames = Annotated[int, msgspec.Meta(ge=0, le=2400)]  # of a chunk: 20 s of 120 a second
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]  # that the job table holds


class SyntheticDenoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The virtual device of `engine = "synthetic"`: pictures are a hash, a step takes a fixed time."""

    step_ms: Annotated[float, msgspec.Meta(ge=0)] = 20.0  # of every denoise step of a batch
    megapixel_ms: Annotated[float, msgspec.Meta(ge=0)] = 50.0  # added per step and megapixel of its pictures
    megapixel_mb: Annotated[float, msgspec.Meta(ge=0)] = 64.0  # memory that a megapixel takes while it runs


class DiffusionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model that makes pictures, or with `fps` videos. Several: one table each."""

    name: Name  # what clients call it
    engine: Literal["torch", "synthetic"] = "torch"  # synthetic: no model, pictures are a hash of what was asked for
    folder: str | None = None  # a diffusers pipeline (Flux, SD3, PixArt, Qwen-Image, Wan), for engine = "torch"
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda where torch sees it
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on cuda, else float32
    threads: Count = 1  # of one replica on a CPU
    embedding_cache_mb: Annotated[int, msgspec.Meta(ge=0)] = (
        64  # prompts, words and pictures, once encoded, per replica
    )
    ip_adapter: Name | None = None  # takes image prompts: a .safetensors file, or a folder with one; for Flux pipelines
    image_encoder: Name | None = None  # of ip_adapter: a CLIP folder; unset: image_encoder beside it, or the pipeline's
    image_prompt_scale: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0  # of a request that names none
    tile_pixels: Count | None = None  # larger frames are decoded in tiles; unset: only those that do not fit otherwise
    memory_mb: Count | None = None  # of a replica, for its work beside the weights; unset: its share of what is there
    text_processes: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0  # that encode text, per replica; 0: it does it itself
    decode_processes: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0  # that decode latents beside each other; 0: itself
    replicas: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # engine processes that serve it
    pools: tuple[SizePool, ...] = ()  # of the replicas, by size, their numbers adding up; empty: each takes every size
    size: Name | None = None  # of a request that names none: WIDTHxHEIGHT; unset: first of sizes, else the pipeline's
    sizes: tuple[str, ...] = ()  # all that are served; empty: any within the three limits below
    multiple: Count = 8  # both sides are multiples of it: pixels of one latent token
    side_min: Count = 32  # pixels
    pixels_max: Count = 1 << 20  # of one picture or frame
    steps: Count = 20  # denoise steps of a request that names none
    steps_max: Count = 200  # most that a request may ask for
    guidance_scale: Annotated[float, msgspec.Meta(ge=0, le=100)] = 3.0  # of a request that names none
    guided_passes: Annotated[int, msgspec.Meta(ge=1, le=2)] = 2  # per guided step; 1: guidance is an input of the model
    edits: bool = True  # takes a picture to start from
    masks: bool = False  # and a mask that says where
    text_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0  # of a prompt, as the model pads it; told as usage
    fps: Annotated[int, msgspec.Meta(ge=0, le=120)] = 0  # frames per second of its videos; 0: it makes pictures
    seconds: tuple[Annotated[int, msgspec.Meta(ge=1, le=600)], ...] = (4, 8, 12)  # lengths; the first is the default
    frame_stride: Count = 1  # frames of one latent frame after the first
    context_frames: Frames = 0  # frames that a chunk of a streaming session goes on from; 0: whole videos only
    chunk_frames: Frames = 0  # new frames of one chunk
    scheduler: DiffusionParams = DiffusionParams()
    synthetic: SyntheticDenoise = SyntheticDenoise()

    @property
    def makes(self) -> Literal["image", "video"]:
        """What clients ask it for."""
        return "video" if self.fps else "image"

    @property
    def usual_size(self) -> str:
        """Of a request that names none. Raises ConfigError where it was left out and the pipeline does not tell."""
        named = self.size or next(iter(self.sizes), None) or (_SYNTHETIC_SIZE if self.folder is None else None)
        return named or default_size(Path(self.folder or "").expanduser(), self.pixels_max, self.multiple)


def check_diffusion(models: Sequence[DiffusionSettings], *, moves: bool = False) -> None:
    """Raise ConfigError for what cannot be served, naming the key. `moves`: replicas may change their pool."""
    if moves and all(len(model.pools) < 2 for model in models):
        raise ConfigError("fleet.shape_pools moves replicas between diffusion[].pools, and no model has two of them")
    for number, model in enumerate(models):
        key = f"diffusion[{number}]"
        if (model.engine == "torch") is (model.folder is None):
            hint = "name the folder of a diffusers pipeline" if model.folder is None else "leave it out"
            raise ConfigError(f"{key}.folder = {model.folder!r} with {key}.engine = {model.engine!r}: {hint}")
        if model.folder is not None and not (Path(model.folder).expanduser() / "model_index.json").is_file():
            raise ConfigError(f"{key}.folder = {model.folder!r} holds no diffusers pipeline (model_index.json)")
        for name, sizes in (("size", (model.usual_size,)), ("sizes", model.sizes)):
            for size in sizes:
                check_size(f"{key}.{name}", size, model.multiple, model.side_min, model.pixels_max)
        if model.sizes and model.usual_size not in model.sizes:
            raise ConfigError(f"{key}.size = {model.size!r} is none of {key}.sizes; add it there, or name one of them")
        if model.folder is None and model.text_processes + model.decode_processes:
            raise ConfigError(
                f"{key}.text_processes and decode_processes need {key}.engine = 'torch': stages of a model"
            )
        if not model.fps and model.pixels_max * _PICTURE_BYTES > CARRIED_BYTES_MAX:
            raise ConfigError(
                f"{key}.pixels_max = {model.pixels_max}: a picture of so many may have more bytes than processes hand "
                f"each other ({CARRIED_BYTES_MAX}); lower it to {int(CARRIED_BYTES_MAX / _PICTURE_BYTES)}"
            )
        if model.steps > model.steps_max:
            raise ConfigError(f"{key}.steps = {model.steps} is above {key}.steps_max = {model.steps_max}")
        if model.masks and not model.edits:
            raise ConfigError(f"{key}.masks needs {key}.edits: a mask says where a picture is edited")
        check_adapter(key, model.ip_adapter, model.image_encoder, is_able=model.folder is not None and not model.fps)
        if not model.seconds:
            raise ConfigError(f"{key}.seconds is empty; name at least one length")
        check_chunks(key, model.context_frames, model.chunk_frames, model.fps)
        _check_pools(f"{key}.pools", model)
        belief = DenoiseCost(believed_cost(model))
        try:
            check(model.scheduler, belief)
            order_policy(model.scheduler, belief)
        except ConfigError as error:
            raise ConfigError(f"in {key}.scheduler: {error}") from None


def sizes_told(models: Sequence[DiffusionSettings]) -> list[tuple[str, str, str]]:
    """Key, value and reason of every usual size that was left out, for people."""
    whys = {True: "the first of sizes", False: "what its pipeline makes, within pixels_max"}
    left_out = [(n, model) for n, model in enumerate(models) if model.size is None and model.folder is not None]
    return [(f"diffusion[{n}].size", model.usual_size, whys[bool(model.sizes)]) for n, model in left_out]


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


def picture_card(model: DiffusionSettings, created: int) -> ModelCard:
    """What the gateway is told of it."""
    looks = PictureCard(
        size=model.usual_size,
        sizes=model.sizes,
        multiple=model.multiple,
        side_min=model.side_min,
        pixels_max=model.pixels_max,
        steps=model.steps,
        steps_max=model.steps_max,
        guidance_scale=model.guidance_scale,
        passes=model.guided_passes,
        edits=model.edits,
        masks=model.masks,
        image_prompt_scale=None if model.ip_adapter is None else model.image_prompt_scale,
        text_tokens=model.text_tokens,
        fps=model.fps,
        seconds=model.seconds,
        frame_stride=model.frame_stride,
        context_frames=model.context_frames,
        chunk_frames=model.chunk_frames,
    )
    return ModelCard(
        id=model.name,
        modalities=(model.makes,),
        max_model_len=0,
        created=created,
        block_size=0,
        vocab_size=0,
        root=model.name,
        pictures=looks,
    )


def denoiser_params(model: DiffusionSettings) -> DenoiserParams:
    """The virtual device of a synthetic model."""
    device = model.synthetic
    return DenoiserParams(step_ns=round(device.step_ms * 1e6), pixel_ns=device.megapixel_ms)


def _pool_of(model: DiffusionSettings, place: int) -> SizePool | None:
    """The pool of its replica number `place`; None: there are none."""
    for pool in model.pools:
        if place < pool.replicas:
            return pool
        place -= pool.replicas
    return None


def diffusion_spec(model: DiffusionSettings, place: int = 0, sharers: int = 1) -> DiffusionSpec:
    """What replica number `place` of it runs, `sharers` of any model on one device. It warms the shapes of its own pool
    before it is ready."""
    cost, pool, probes, scheduler = believed_cost(model), _pool_of(model, place), probes_of(model), model.scheduler
    stock = Stock(tuple(shape for shape, _ in probes.batches), probes.form, probes.fps)
    if pool is not None:
        own = tuple(batch for batch in probes.batches if pool.takes(batch[0]))
        probes = msgspec.structs.replace(probes, batches=own)
        scheduler = msgspec.structs.replace(scheduler, pixels_min=pool.pixels_min, pixels_max=pool.pixels_max)
    if model.folder is None:
        return DiffusionSpec(scheduler, denoiser_params(model), cost, stock=stock, memory=believed_memory(model))
    return DiffusionSpec(
        scheduler,
        cost=cost,
        pipeline=PipelineSpec(
            folder=str(Path(model.folder).expanduser().absolute()),
            device=model.device,
            dtype=model.dtype,
            threads=model.threads,
            cache_mb=model.embedding_cache_mb,
            ip_adapter=absolute(model.ip_adapter),
            image_encoder=absolute(model.image_encoder),
            tile_pixels=model.tile_pixels,
            guidance_scale=model.guidance_scale or None,
            text_processes=model.text_processes,
            decode_processes=model.decode_processes,
            memory_bytes=_bytes_of(model.memory_mb),
            pictures_max=scheduler.batch_max,
            sharers=sharers,
            chunks=chunks_of(picture_card(model, 0).pictures),
        ),
        probes=probes if probes.batches else None,
        stock=stock,
    )


def probes_of(model: DiffusionSettings) -> Probes:
    """Every shape that the configuration names, the usual one first, and its largest batch: all are warm before ready
    (SPEC F8)."""
    looks = picture_card(model, 0).pictures
    assert looks is not None  # of every model here
    passes = model.guided_passes if model.guidance_scale > 1 else 1
    lengths = [frames_of(seconds, looks) for seconds in model.seconds] if model.fps else [1]
    lengths += [frames for frames, _given, _hand_on in chunks_of(looks)]
    named = [(size, frames) for size in (model.usual_size, *model.sizes) for frames in lengths]
    shapes = dict.fromkeys(DenoiseShape(*sides_of(size), frames, passes) for size, frames in named)
    batches = tuple((shape, largest_batch(model.scheduler, shape)) for shape in shapes)
    is_own_work = model.device != "cuda" and not model.text_processes + model.decode_processes
    takes_pictures = model.edits and not model.fps
    form, is_shown = "mp4" if model.fps else "png", model.ip_adapter is not None
    return Probes(batches, form, model.fps, is_own_work, takes_pictures, is_shown)


def believed_memory(model: DiffusionSettings) -> DenoiseMemory:
    """What its work holds of the virtual device: all of it while pictures are decoded."""
    pixel = model.synthetic.megapixel_mb * _MIB / 1e6
    return DenoiseMemory(0.0, 0.0, 0.0, 0.0, 0.0, pixel, room=_bytes_of(model.memory_mb))


def _bytes_of(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * _MIB


def believed_cost(model: DiffusionSettings) -> DenoiseCoefficients:
    """What its work is believed to take before anything was measured: that of the virtual device."""
    params = denoiser_params(model)
    patch = model.multiple if model.folder is not None else _PATCH
    return DenoiseCoefficients(
        base_ns=0.0,
        floor_ns=float(params.step_ns),
        token_ns=params.pixel_ns * patch * patch,
        pair_ns=0.0,
        patch=patch,
        frame_stride=model.frame_stride,
        text_tokens=model.text_tokens,
        passes=model.guided_passes if model.guidance_scale > 1 else 1,
        is_floor_hidden=False,
        steps=model.steps,
    )
