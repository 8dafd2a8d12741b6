"""Builds the video autoencoder: diffusers' AutoencoderKLWan as the linear map that loses least, without training.

Each 16 x 16 pixels of each frame become the first coefficients of their principal components. The class is made linear:
every feature is lifted so far that silu leaves it as it is, and beside them runs a constant so large that the
root-mean-square norm is one; residual blocks and attention add nothing. `python -m models.tiny.wan_vae OUT`
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm, patchify
from torch import Tensor, nn

from .clips import clips, frame
from .training import Log, begin

CHANNELS, PATCH, POOL = 24, 16, 1500
WIDTH = CHANNELS + 2
LIFT = 48.0  # more than thirty above the lowest feature: there silu(f) = f in single precision
CONSTANT = 65536.0  # squared, 50 000 times the squared features: the norm strays from one by 1 in 100 000


def new_vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=WIDTH,
        z_dim=CHANNELS,
        dim_mult=[1],
        num_res_blocks=0,
        temperal_downsample=[],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
        in_channels=3 * PATCH**2,
        out_channels=3 * PATCH**2,
        patch_size=PATCH,
        scale_factor_temporal=1,
        scale_factor_spatial=PATCH,
    )


def patches(frames: Tensor) -> Tensor:
    """`[n, 3 * PATCH ** 2]`: all patches of frames `[frames, 3, height, width]`, in the class's order of channels."""
    return patchify(frames[:, :, None], PATCH).movedim(1, -1).flatten(0, -2)


def components(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean `[d]`, the first principal axes `[CHANNELS, d]` of `x` `[n, d]`, and the spread along each."""
    mean = x.mean(0)
    spread, axes = torch.linalg.eigh(torch.cov((x - mean).T.double()))
    return mean, axes.T.flip(0)[:CHANNELS].float(), spread.flip(0)[:CHANNELS].sqrt().float()


def put(conv: WanCausalConv3d, weight: Tensor, bias: Tensor) -> None:
    """A pointwise map `[out, in]`: the last tap in time, the middle one in space."""
    middle = conv.weight.shape[-1] // 2
    conv.weight.zero_()
    conv.weight[:, :, -1, middle, middle] = weight
    conv.bias.copy_(bias)


def lay_out(into: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Rows f + LIFT and a constant, from the map `into` `[CHANNELS, in]` of the features and its bias."""
    rest = WIDTH - CHANNELS
    weight = torch.cat([into, torch.zeros(rest, into.shape[1])])
    return weight, torch.cat([bias + LIFT, torch.full((rest,), CONSTANT / math.sqrt(rest))])


def read_lifted(out_of: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The map `[out, WIDTH]` that reads features laid out by `lay_out` through `out_of` `[out, CHANNELS]`; its bias."""
    return torch.cat([out_of, torch.zeros(len(out_of), WIDTH - CHANNELS)], 1), bias - LIFT * out_of.sum(1)


@torch.no_grad()
def make_linear(vae: AutoencoderKLWan, mean: Tensor, axes: Tensor) -> None:
    """The axes are rounded to half precision, in which they are published; what is lowered again fits those."""
    axes = axes.half().float()
    for part in vae.modules():
        if isinstance(part, WanCausalConv3d | nn.Conv2d):
            part.weight.zero_()
            part.bias.zero_()
        elif isinstance(part, WanRMS_norm):
            part.gamma.fill_(CONSTANT / math.sqrt(WIDTH))
    one = torch.eye(CHANNELS)
    put(vae.encoder.conv_in, *lay_out(axes, -axes @ mean))
    variance = torch.cat([torch.zeros(CHANNELS), torch.full((CHANNELS,), -30.0)])  # in logarithms: none
    put(vae.encoder.conv_out, *read_lifted(torch.cat([one, torch.zeros_like(one)]), variance))
    put(vae.quant_conv, torch.eye(2 * CHANNELS), torch.zeros(2 * CHANNELS))
    put(vae.post_quant_conv, one, torch.zeros(CHANNELS))
    put(vae.decoder.conv_in, *lay_out(one, torch.zeros(CHANNELS)))
    put(vae.decoder.conv_out, *read_lifted(axes.T.contiguous(), mean))


def build(out: Path) -> None:
    begin(0)
    log, vae = Log("wan_vae"), new_vae().eval()
    mean, axes, spread = components(patches(torch.from_numpy(np.stack([frame(c, 0) for c in clips(70, POOL)]))))
    make_linear(vae, mean, axes)
    # Half of the way to equal spreads: the transformer then sees the fine coefficients before the noise is gone.
    scale = spread.sqrt()
    scale = scale * (spread / scale).square().mean().sqrt()
    vae.register_to_config(latents_mean=[0.0] * CHANNELS, latents_std=scale.tolist())
    vae.save_pretrained(out)
    log(held_out_psnr_db=round_trip(vae), spread=(spread / scale).tolist())


@torch.inference_mode()
def round_trip(vae: AutoencoderKLWan) -> float:
    """Decibels on held-out frames, 17 unrelated ones a clip, since each must stand for itself."""
    x = torch.from_numpy(np.stack([frame(c, 0) for c in clips(71, 8 * 17, held_out=True)]))
    video = x.unflatten(0, (8, 17)).transpose(1, 2)
    y = vae.decode(vae.encode(video).latent_dist.mode()).sample
    return 10 * math.log10(4 / (y - video).square().mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
