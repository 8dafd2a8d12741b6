"""Models that make pictures and videos: `[[diffusion]]`. What they take of a client, and how their replicas compute."""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from headway.adapters.gateway.pictures.sizes import frames_of
from headway.adapters.gateway.ports import ModelCard, PictureCard
from headway.core.reports import DenoiseAbilities, DenoiseCoefficients, DenoiseMemory
from headway.core.request import DenoiseShape
from headway.engines.synthetic.denoise import DenoiserParams
from headway.live.adapter_paths import absolute
from headway.live.chunk_sizes import chunks_of
from headway.live.denoise_warmup import Probes
from headway.live.pipeline_sizes import default_size, sides_of
from headway.live.size_pools import SizePool
from headway.live.spec import DiffusionSpec, PipelineSpec
from headway.sched.diffusion.params import DiffusionParams, StageWatchdog, largest_batch
from headway.sched.diffusion.warming import Stock

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
    encode_processes: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0  # that encode pictures of edits; 0: it does it
    decode_processes: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0  # that decode latents beside each other; 0: itself
    stage_watchdog: StageWatchdog | None = StageWatchdog()  # of those processes; null: they may hang for ever
    replicas: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # engine processes that serve it
    pools: tuple[SizePool, ...] = ()  # of the replicas, by size, their numbers adding up; empty: each takes every size
    size: Name | None = None  # of a request that names none: WIDTHxHEIGHT; unset: first of sizes, else the pipeline's
    sizes: tuple[str, ...] = ()  # all that are served; empty: any within the three limits below
    shapes_kept: Annotated[int, msgspec.Meta(ge=0, le=64)] = 32  # others that were warm: again after a restart; 0: none
    settle_passes_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4  # repeated warm-ups until device memory is steady
    multiple: Count = 8  # both sides are multiples of it: pixels of one latent token
    side_min: Count = 32  # pixels
    pixels_max: Count = 1 << 20  # of one picture or frame
    steps: Count = 20  # denoise steps of a request that names none
    steps_max: Count = 200  # most that a request may ask for
    guidance_scale: Annotated[float, msgspec.Meta(ge=0, le=100)] = 3.0  # of a request that names none; up to 1: none
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
    def stage_processes(self) -> int:
        """Of all stages, per replica."""
        return self.text_processes + self.encode_processes + self.decode_processes

    @property
    def usual_size(self) -> str:
        """Of a request that names none. Raises ConfigError where it was left out and the pipeline does not tell."""
        named = self.size or next(iter(self.sizes), None) or (_SYNTHETIC_SIZE if self.folder is None else None)
        return named or default_size(Path(self.folder or "").expanduser(), self.pixels_max, self.multiple)

    @property
    def usual_guidance(self) -> float:
        """Of a request that names none. None at all is 1 inside, where 0 stands for the pipeline's own."""
        return self.guidance_scale or (1.0 if self.guided_passes > 1 else 0.0)


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
        guidance_scale=model.usual_guidance,
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
    stock = Stock(tuple(shape for shape, _ in probes.batches), probes.form, probes.fps, abilities=_abilities(model))
    if pool is not None:
        own = tuple(batch for batch in probes.batches if pool.takes(batch[0]))
        probes = msgspec.structs.replace(probes, batches=own)
        scheduler = msgspec.structs.replace(scheduler, pixels_min=pool.pixels_min, pixels_max=pool.pixels_max)
    scheduler = _waiting_for_stages(model, scheduler)
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
            guidance_scale=model.usual_guidance or None,
            text_processes=model.text_processes,
            encode_processes=model.encode_processes,
            decode_processes=model.decode_processes,
            memory_bytes=_bytes_of(model.memory_mb),
            pictures_max=scheduler.batch_max,
            sharers=sharers,
            chunks=chunks_of(picture_card(model, 0).pictures),
            stage_watchdog=model.stage_watchdog,
        ),
        probes=probes if probes.batches else None,
        stock=stock,
    )


def _abilities(model: DiffusionSettings) -> DenoiseAbilities:
    """What the router knows of it, the same as the gateway's card says."""
    looks = picture_card(model, 0).pictures
    assert looks is not None  # of every model here
    return DenoiseAbilities(
        makes_videos=looks.fps > 0,
        edits=looks.edits,
        masks=looks.masks,
        image_prompts=looks.image_prompt_scale is not None,
        negative_prompts=looks.passes > 1,
        is_guided=looks.guidance_scale > 1,
        chunks=bool(chunks_of(looks)),
        sizes=tuple(sides_of(size) for size in looks.sizes),
        multiple=looks.multiple,
        side_min=looks.side_min,
        pixels_max=looks.pixels_max,
        frame_stride=looks.frame_stride,
    )


def _waiting_for_stages(model: DiffusionSettings, scheduler: DiffusionParams) -> DiffusionParams:
    """A plan in which a stage process is replaced is no stuck engine."""
    watchdog, stages = scheduler.watchdog, model.stage_watchdog
    if watchdog is None or stages is None or not model.stage_processes:
        return scheduler
    more_s = max(watchdog.more_s, stages.more_s)
    return msgspec.structs.replace(scheduler, watchdog=msgspec.structs.replace(watchdog, more_s=more_s))


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
    is_own_work = model.device != "cuda" and not model.stage_processes
    takes_pictures = model.edits and not model.fps
    form, is_shown = "mp4" if model.fps else "png", model.ip_adapter is not None
    return Probes(batches, form, model.fps, is_own_work, takes_pictures, is_shown, model.settle_passes_max)


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
