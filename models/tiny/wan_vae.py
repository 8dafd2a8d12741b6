"""Trains the video autoencoder: diffusers' AutoencoderKLWan, 8 times down in space, frame by frame in time.

A clip's frames are pictures, so it is trained on pictures: every causal convolution sees only its last tap, the others
are zero. A frame is then coded alike wherever it stands. `python -m models.tiny.wan_vae OUT [--steps N]`
"""

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify
from torch import Tensor
from torch.nn.functional import conv2d

from .clips import clips, frame
from .training import Averaged, Log, begin

CHANNELS, WIDTH, PATCH, BATCH, POOL, LR = 16, 24, 4, 24, 2000, 2e-3


def new_vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=WIDTH,
        z_dim=CHANNELS,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
        in_channels=3 * PATCH**2,
        out_channels=3 * PATCH**2,
        patch_size=PATCH,
        scale_factor_temporal=1,
        scale_factor_spatial=8,
    )


def convolutions(vae: AutoencoderKLWan) -> list[WanCausalConv3d]:
    return [m for m in vae.modules() if isinstance(m, WanCausalConv3d)]


def on_one_frame(conv: WanCausalConv3d, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
    """What the causal convolution does to a first frame, at a third of the cost."""
    del cache_x  # a first frame has none before it
    weight = conv.weight[:, :, -1]
    return conv2d(x[:, :, 0], weight, conv.bias, padding=weight.shape[-1] // 2)[:, :, None]


def treat_as_pictures(vae: AutoencoderKLWan, *, on: bool) -> None:
    for conv in convolutions(vae):
        if on:
            conv.forward = partial(on_one_frame, conv)
        else:
            del conv.forward


@torch.no_grad()
def forget_the_past(vae: AutoencoderKLWan) -> None:
    for conv in convolutions(vae):
        conv.weight[:, :, :-1] = 0


def code(vae: AutoencoderKLWan, x: Tensor) -> Tensor:
    """Latents `[frames, CHANNELS, 1, h, w]` of frames `[frames, 3, height, width]`."""
    z = vae.quant_conv(vae.encoder(patchify(x[:, :, None], PATCH)))
    return z[:, :CHANNELS]


def train(out: Path, steps: int, seed: int = 0) -> None:
    begin(seed)
    log, vae = Log("wan_vae"), new_vae().train()
    forget_the_past(vae)
    treat_as_pictures(vae, on=True)
    pool = torch.from_numpy(np.stack([frame(c, 0) for c in clips(70, POOL)]))
    weights = list(vae.parameters())
    adam = torch.optim.AdamW(weights, lr=LR, betas=(0.9, 0.98), weight_decay=1e-4)
    average = Averaged(weights)
    for i in range(1, steps + 1):
        adam.param_groups[0]["lr"] = LR * min(1, i / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * i / steps)))
        x = pool[torch.randint(0, len(pool), (BATCH,))]
        z = code(vae, x)
        y = unpatchify(vae.decoder(vae.post_quant_conv(z + 0.1 * torch.randn_like(z))), PATCH)[:, :, 0]
        squared = (y - x).square().mean()
        edges = sum(torch.diff(y - x, dim=d).abs().mean() for d in (2, 3))
        spread = 0.05 * (z.square().mean() - 1) ** 2 + 0.05 * z.mean((0, 2, 3, 4)).square().mean()
        adam.zero_grad()
        ((y - x).abs().mean() + squared + 0.5 * edges + spread).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        average.update()
        if i % 100 == 0:
            log(step=i, psnr_db=10 * math.log10(4 / squared.item()))
    average.swap()
    treat_as_pictures(vae, on=False)
    finish(vae.eval(), out, log)


@torch.inference_mode()
def finish(vae: AutoencoderKLWan, out: Path, log: Log) -> None:
    """Measures held-out clips through the class's own paths, writes the latents' mean and spread, saves."""
    x = torch.from_numpy(np.stack([frame(c, 0) for c in clips(71, 8 * 17, held_out=True)]))
    video = x.unflatten(0, (8, 17)).transpose(1, 2)  # 17 unrelated frames a clip: each must stand for itself
    z = vae.encode(video).latent_dist.mode()
    y = vae.decode(z).sample
    vae.register_to_config(latents_mean=z.mean((0, 2, 3, 4)).tolist(), latents_std=[z.std().item()] * CHANNELS)
    vae.save_pretrained(out)
    log(held_out_psnr_db=10 * math.log10(4 / (y - video).square().mean().item()), spread=z.std((0, 2, 3, 4)).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    a = parser.parse_args()
    train(a.out, a.steps)


if __name__ == "__main__":
    main()
