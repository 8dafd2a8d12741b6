"""From a model and its devices to the coefficients of F2: what of a device's peak a denoiser reaches, and in what form.

A forward pass is products + attention + element-wise traffic, each at its own share of a peak, over the devices of a
sequence-parallel group, and the group's all-to-alls. Eager code reads and writes activations about 72 times per block,
compiled code about 16 times (fits of FLUX.1-dev on an L20, eager 24.1 s against 20.2 s).
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.reports import DenoiseCoefficients, DenoiseMemory
from headway.core.units import NS_PER_S
from headway.cost.collectives import ALL_TO_ALL_FIXED_NS
from headway.cost.devices import Device
from headway.cost.diffusion_models import DiffusionModel
from headway.cost.links import Link, find_link

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

EAGER_TRAFFIC: Final = 72
COMPILED_TRAFFIC: Final = 16
EAGER_LAUNCH_S: Final = 250e-6  # host time of one eager block: some 30 kernels and their Python
COMPILED_LAUNCH_S: Final = 40e-6
TEXT_LAUNCH_S: Final = 20e-3  # host time of an eager text encoder: seed 003 5 has 20-70 ms
TILE: Final = 128  # rows and columns of a GEMM tile
# Tensors of the hidden width that a block holds at its peak, per token: seed 003 3 has 14 GiB for a Wan-14B video of
# 720p (75 600 tokens of 5120 numbers in 16 bits), which is 19 of them.
ACTIVATION_WIDTHS: Final = 19
MEMORY_SHARE: Final = 0.85  # of the bandwidth that streams reach
CONTROL_SHARE: Final = 0.22  # seed 003 2: +15-30 % for a DiT's ControlNet
LORA_SHARE: Final = 0.035  # seed 003 2: +2-5 % where products dominate
IMAGE_PROMPT_FLOPS: Final = 2 * 0.43e9 * 729  # SigLIP so400m on 729 patches


class Reach(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What denoisers reach of a device's peaks."""

    multiprocessors: Annotated[int, msgspec.Meta(ge=1)]
    linear: Share  # in large products
    attention: Share  # in the usual attention kernel
    flash3: Share  # in the best attention kernel for this device
    fp8: Share  # of the fp8 peak, quantisation of activations included


class Chip(msgspec.Struct, frozen=True):
    """One device of a replica, what joins it to the others, and what is reached."""

    device: Device
    link: Link
    reach: Reach


class Execution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica runs its denoiser."""

    compiled: bool = True
    flash3: bool = True  # the best attention kernel of the device
    fp8: bool = False  # products in fp8
    step_cache: Annotated[float, msgspec.Meta(ge=1)] = 1.0  # speed-up of the steps by a step cache
    sp: Annotated[int, msgspec.Meta(ge=1)] = 1  # devices of a sequence-parallel group
    sp_efficiency: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None  # unset: from its all-to-alls
    cfg_parallel: bool = False  # the two passes of guidance on two groups
    lora: Literal["wrapped", "merged"] = "wrapped"  # merged: free at every step, two rewrites of the weights per change
    efficiency: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of all compute, against the catalogue
    vae_tiles: Annotated[int, msgspec.Meta(ge=1)] = 1  # parts that the VAE decodes one after the other
    text_resident: bool = True  # the text encoders stay in device memory; else they are offloaded while steps run

    @property
    def devices(self) -> int:
        """That a replica holds."""
        return self.sp * (2 if self.cfg_parallel else 1)


def coefficients(model: DiffusionModel, chip: Chip, run: Execution) -> DenoiseCoefficients:
    """Return what a replica is believed to take before anything was measured. Raises ConfigError."""
    if run.cfg_parallel and model.passes != 2:
        raise ConfigError(f"cfg_parallel needs two passes per step; {model.name} makes {model.passes}; turn it off")
    device, reach = chip.device, chip.reach
    if run.fp8 and "fp8" not in device.flops:
        raise ConfigError(f"fp8 = true needs fp8 products, and {device.name} has none; turn it off")
    peak = device.flops_of("bfloat16")
    linear = reach.fp8 * device.flops_of("fp8") if run.fp8 else reach.linear * peak
    attention = (reach.flash3 if run.flash3 else reach.attention) * peak
    memory = device.bytes_per_s * MEMORY_SHARE
    linear_flops, pair_flops = model.flops(1)
    token_s = linear_flops / linear
    traffic_s = (COMPILED_TRAFFIC if run.compiled else EAGER_TRAFFIC) * model.blocks * model.hidden * 2 / memory
    pair_s = pair_flops / attention
    half_wave = TILE * TILE * reach.multiprocessors / (2 * model.hidden)  # tokens
    launch_s = (COMPILED_LAUNCH_S if run.compiled else EAGER_LAUNCH_S) * model.blocks
    weights_s = (1 if run.fp8 else 2) * model.parameters / memory
    split = run.sp if run.sp_efficiency is None else run.sp * run.sp_efficiency
    exchange_s = _exchange_s(model, chip, run) if run.sp_efficiency is None else (0.0, 0.0)
    text_shared_s = TEXT_LAUNCH_S + model.text_bytes / memory  # launches, and one read of the weights
    # Two groups for the two passes: each step takes as long as one pass.
    branch = 0.5 if run.cfg_parallel else 1.0
    k = NS_PER_S / run.efficiency
    ns = NS_PER_S
    return DenoiseCoefficients(
        base_ns=token_s * half_wave * k + exchange_s[0] * ns,
        floor_ns=max(launch_s, weights_s) * ns,
        token_ns=branch * ((token_s + traffic_s) / split * k + exchange_s[1] * ns),
        pair_ns=branch * pair_s / split * k,
        patch=model.patch,
        frame_stride=model.frame_stride,
        text_tokens=model.text_tokens,
        passes=model.passes,
        text_ns=(text_shared_s + 2 * model.text_parameters * model.text_length / (reach.linear * peak)) * ns,
        text_shared_ns=text_shared_s * ns,
        # A VAE encoder is about half a decoder; a token covers patch^2 pixels.
        reference_ns=0.5 * model.vae_bytes_per_pixel * model.patch**2 / memory * ns,
        image_prompt_ns=(TEXT_LAUNCH_S + IMAGE_PROMPT_FLOPS / (reach.linear * peak)) * ns,
        decode_ns=model.vae_bytes_per_pixel / memory * ns,
        control_share=CONTROL_SHARE,
        lora_share=0.0 if run.lora == "merged" else LORA_SHARE,
        merge_ns=merge_s(model, memory) * ns if run.lora == "merged" else 0.0,
        speedup=run.step_cache,
        devices=run.devices,
        steps=model.steps,
    )


def _exchange_s(model: DiffusionModel, chip: Chip, run: Execution) -> tuple[float, float]:
    """Seconds per forward pass, and per token of it, of the all-to-alls (q, k, v, out) of sequence parallelism."""
    if run.sp == 1:
        return 0.0, 0.0
    sent = 4 * model.hidden * 2 * (run.sp - 1) / run.sp**2  # bytes per token, block and device
    blocks = model.attention_blocks
    return 4 * blocks * ALL_TO_ALL_FIXED_NS / NS_PER_S, blocks * sent / chip.link.bytes_per_s


def pixels_fit(model: DiffusionModel, device: Device, run: Execution, memory_share: float = 0.9) -> int:
    """Pixels of one request, all frames, whose VAE decode fits beside the weights in `memory_share` of the memory.

    Denoiser and VAE are replicated over a sequence-parallel group. Not above 0: not even the weights fit.
    """
    room = _room_bytes(model, device, run, memory_share)
    return int(room * run.vae_tiles / model.vae_peak_bytes_per_pixel)


def batch_pixels_fit(
    model: DiffusionModel, device: Device, run: Execution, passes: int, memory_share: float = 0.9
) -> int:
    """Pixels of a batch, all pictures and frames, whose denoise step fits beside the weights. Prompt tokens and the
    first frame of a video, which are few beside the others, are left out."""
    branches = 1 if run.cfg_parallel else passes
    token_bytes = ACTIVATION_WIDTHS * model.hidden * 2 * branches / run.sp
    return int(_room_bytes(model, device, run, memory_share) / token_bytes * model.patch**2 * model.frame_stride)


def work_memory(model: DiffusionModel, device: Device, run: Execution, memory_share: float = 0.9) -> DenoiseMemory:
    """What work holds beside the weights, as a live replica would tell it (`cost.diffusion_memory`): latents and
    embeddings are left out, which are few beside activations."""
    token = ACTIVATION_WIDTHS * model.hidden * 2 / run.sp / (2 if run.cfg_parallel else 1)
    pixel = model.vae_peak_bytes_per_pixel / run.vae_tiles
    room = max(0, int(_room_bytes(model, device, run, memory_share)))
    return DenoiseMemory(0.0, 0.0, 0.0, token, 0.0, pixel, room)


def _room_bytes(model: DiffusionModel, device: Device, run: Execution, memory_share: float) -> float:
    """What is left beside the weights."""
    held = model.weight_bytes * (0.5 if run.fp8 else 1.0) + (model.text_bytes if run.text_resident else 0.0)
    return device.memory_bytes * memory_share - held


def merge_s(model: DiffusionModel, bytes_per_s: float) -> float:
    """Least time to merge an adapter, or to take it out again: one read and one write of all weights.

    Seed 003 6 has some 100 ms for FLUX: the bound of an H100 is 17 ms; a pristine copy in host memory comes over PCIe.
    """
    return 2 * model.weight_bytes / bytes_per_s


# Shares of the peak, dated 2026-11. H100: attention kernels of the FlashAttention-3 paper (arXiv 2407.08608, figure 5:
# 0.37 with FlashAttention-2, 0.65 with 3); products so that seed 003 1's compiled FLUX.1-dev takes its 3.9 s, fp8 so
# that it takes 2.9 s. L20: products from FLUX.1-dev compiled (flux-faster, 20.24 s), attention from HunyuanVideo
# (diffusers para_attn, 3676 s). A100: FlashAttention-2 paper (arXiv 2307.08691), products as cuBLAS reaches them.
# H200: the H100's, the same chip; RTX 4090 and L40S: the L20's, the same architecture.
_HOPPER: Final = Reach(132, 0.635, 0.37, 0.65, 0.49)
REACHES: Final[Mapping[str, Reach]] = {
    "H100-SXM": _HOPPER,
    "H200": _HOPPER,
    "A100-80G": Reach(108, 0.8, 0.65, 0.65, 0.8),
    "A100-40G": Reach(108, 0.8, 0.65, 0.65, 0.8),
    "L20": Reach(92, 0.97, 0.85, 0.85, 0.75),
    "L40S": Reach(142, 0.97, 0.85, 0.85, 0.75),
    "RTX-4090": Reach(128, 0.97, 0.85, 0.85, 0.75),
}


def chip(device: Device, link: Link | None = None, reaches: Mapping[str, Reach] | None = None) -> Chip:
    """Join a device with its link (None: its own) and what is reached of it; `reaches` are a user's, by device.

    Raises ConfigError for a device on which nobody has measured a denoiser.
    """
    known = {**REACHES, **(reaches or {})}
    reach = known.get(device.name)
    if reach is None:
        raise ConfigError(
            f"no denoiser was measured on device {device.name!r}; known are {', '.join(known)}; "
            "a user file may say what it reaches"
        )
    return Chip(device, link or find_link(device.link), reach)
