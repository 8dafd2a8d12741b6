"""From a model and its devices to the coefficients of F2: what of a device's peak a denoiser reaches, and in what form.

A forward pass is products + attention + element-wise traffic, each at its own share of a peak, over the devices of a
sequence-parallel group, and the group's all-to-alls. Eager code reads and writes activations about 72 times per block,
compiled code about 16 times (fits of FLUX.1-dev on an L20, eager 24.1 s against 20.2 s).
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.reports import DenoiseCoefficients
from headway.core.units import NS_PER_S
from headway.cost.diffusion_models import DiffusionModel

EAGER_TRAFFIC: Final = 72
COMPILED_TRAFFIC: Final = 16
EAGER_LAUNCH_S: Final = 250e-6  # host time of one eager block: some 30 kernels and their Python
COMPILED_LAUNCH_S: Final = 40e-6
TEXT_LAUNCH_S: Final = 20e-3  # host time of an eager text encoder: seed 003 5 has 20-70 ms
TILE: Final = 128  # rows and columns of a GEMM tile
MEMORY_SHARE: Final = 0.85  # of the bandwidth that streams reach
ALL_TO_ALL_S: Final = 20e-6  # latency of one exchange
CONTROL_SHARE: Final = 0.22  # seed 003 2: +15-30 % for a DiT's ControlNet
LORA_SHARE: Final = 0.035  # seed 003 2: +2-5 % where products dominate
IMAGE_PROMPT_FLOPS: Final = 2 * 0.43e9 * 729  # SigLIP so400m on 729 patches


class Chip(msgspec.Struct, frozen=True):
    """One device as a denoiser sees it: peaks (dense, per second) and the shares of them that are reached."""

    name: str
    flops: float  # bfloat16
    flops_fp8: float  # equal to `flops` where there is none
    bytes_per_s: float
    link_bytes_per_s: float  # that an all-to-all reaches, per device
    multiprocessors: int
    linear: float  # of the peak, in large products
    attention: float  # of the peak, in the usual kernel
    flash3: float  # of the peak, in the best kernel for this device
    fp8: float  # of the fp8 peak, quantisation of activations included


class Execution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica runs its denoiser."""

    compiled: bool = True
    flash3: bool = True  # the best attention kernel of the device
    fp8: bool = False  # products in fp8
    step_cache: Annotated[float, msgspec.Meta(ge=1)] = 1.0  # speed-up of the steps by a step cache
    sp: Annotated[int, msgspec.Meta(ge=1)] = 1  # devices of a sequence-parallel group
    sp_efficiency: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None  # unset: from its all-to-alls
    cfg_parallel: bool = False  # the two passes of guidance on two groups
    lora: Literal["wrapped", "merged"] = "wrapped"  # merged: an adapter costs no step anything
    efficiency: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of all compute, against the catalogue

    @property
    def devices(self) -> int:
        """That a replica holds."""
        return self.sp * (2 if self.cfg_parallel else 1)


def coefficients(model: DiffusionModel, chip: Chip, run: Execution) -> DenoiseCoefficients:
    """Return what a replica is believed to take before anything was measured. Raises ConfigError."""
    if run.cfg_parallel and model.passes != 2:
        raise ConfigError(f"cfg_parallel needs two passes per step; {model.name} makes {model.passes}; turn it off")
    linear = chip.fp8 * chip.flops_fp8 if run.fp8 else chip.linear * chip.flops
    attention = (chip.flash3 if run.flash3 else chip.attention) * chip.flops
    memory = chip.bytes_per_s * MEMORY_SHARE
    linear_flops, pair_flops = model.flops(1)
    token_s = linear_flops / linear
    traffic_s = (COMPILED_TRAFFIC if run.compiled else EAGER_TRAFFIC) * model.blocks * model.hidden * 2 / memory
    pair_s = pair_flops / attention
    half_wave = TILE * TILE * chip.multiprocessors / (2 * model.hidden)  # tokens
    launch_s = (COMPILED_LAUNCH_S if run.compiled else EAGER_LAUNCH_S) * model.blocks
    weights_s = (1 if run.fp8 else 2) * model.parameters / memory
    split = run.sp if run.sp_efficiency is None else run.sp * run.sp_efficiency
    exchange_s = _exchange_s(model, chip, run) if run.sp_efficiency is None else (0.0, 0.0)
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
        text_ns=(
            TEXT_LAUNCH_S
            + 2 * model.text_parameters * model.text_length / (chip.linear * chip.flops)
            + model.text_bytes / memory
        )
        * ns,
        # A VAE encoder is about half a decoder; a token covers patch^2 pixels.
        reference_ns=0.5 * model.vae_bytes_per_pixel * model.patch**2 / memory * ns,
        image_prompt_ns=(TEXT_LAUNCH_S + IMAGE_PROMPT_FLOPS / (chip.linear * chip.flops)) * ns,
        decode_ns=model.vae_bytes_per_pixel / memory * ns,
        control_share=CONTROL_SHARE,
        lora_share=0.0 if run.lora == "merged" else LORA_SHARE,
        speedup=run.step_cache,
        devices=run.devices,
    )


def _exchange_s(model: DiffusionModel, chip: Chip, run: Execution) -> tuple[float, float]:
    """Seconds per forward pass, and per token of it, of the all-to-alls (q, k, v, out) of sequence parallelism."""
    if run.sp == 1:
        return 0.0, 0.0
    sent = 4 * model.hidden * 2 * (run.sp - 1) / run.sp**2  # bytes per token, block and device
    blocks = model.attention_blocks
    return 4 * blocks * ALL_TO_ALL_S, blocks * sent / chip.link_bytes_per_s


def merge_s(model: DiffusionModel, bytes_per_s: float) -> float:
    """Least time to merge an adapter, or to take it out again: one read and one write of all weights.

    Seed 003 6 has some 100 ms for FLUX: the bound of an H100 is 17 ms; a pristine copy in host memory comes over PCIe.
    """
    return 2 * model.weight_bytes / bytes_per_s


# Shares of the peak. H100: attention kernels of the FlashAttention-3 paper (arXiv 2407.08608, figure 5: 0.37 with
# FlashAttention-2, 0.65 with 3); products so that seed 003 1's compiled FLUX.1-dev takes its 3.9 s, fp8 so that it
# takes 2.9 s. L20: products from FLUX.1-dev compiled (flux-faster, 20.24 s), attention from HunyuanVideo (diffusers
# para_attn, 3676 s). A100: FlashAttention-2 paper (arXiv 2307.08691), products as cuBLAS reaches them. RTX 4090: the
# L20's, of the same architecture. Links: all-to-all over NVLink, or over PCIe 4 where there is none.
_CHIPS: Final = (
    Chip("H100-SXM", 989e12, 1979e12, 3.35e12, 300e9, 132, 0.635, 0.37, 0.65, 0.49),
    Chip("A100-SXM-80GB", 312e12, 312e12, 2.04e12, 200e9, 108, 0.8, 0.65, 0.65, 0.8),
    Chip("L20", 119.5e12, 239e12, 864e9, 20e9, 92, 0.97, 0.85, 0.85, 0.75),
    Chip("RTX-4090", 165.2e12, 330.3e12, 1.008e12, 20e9, 128, 0.95, 0.85, 0.85, 0.75),
)
CHIPS: Final[Mapping[str, Chip]] = {entry.name: entry for entry in _CHIPS}


def chip(name: str, more: Mapping[str, Chip] | None = None) -> Chip:
    """Return a device by name, `more` (a user's) before the table. Raises ConfigError."""
    found = (more or {}).get(name) or CHIPS.get(name)
    if found is None:
        known = ", ".join([*(more or {}), *CHIPS])
        raise ConfigError(f"no denoiser was measured on device {name!r}; known are {known}; a user file may add it")
    return found
