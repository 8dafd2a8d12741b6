"""Trains the picture autoencoder: diffusers' AutoencoderTiny, 4 times down, 8 channels.

`python -m models.tiny.vae OUT [--steps N] [--start FROM]`
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderTiny
from torch import Tensor
from torch.nn.functional import relu

from .oracle import as_pixels, table
from .scenes import busy_picture, draw_all, scenes
from .training import Averaged, Log, begin

CHANNELS, WIDTH, BATCH, POOL, CROP, LR = 8, 32, 16, 1500, 32, 2e-3


def new_vae() -> AutoencoderTiny:
    """No block at full resolution on the way down: it would cost half of the time and buys nothing."""
    return AutoencoderTiny(
        latent_channels=CHANNELS,
        encoder_block_out_channels=(WIDTH,) * 3,
        decoder_block_out_channels=(WIDTH,) * 3,
        num_encoder_blocks=(0, 1, 2),
        num_decoder_blocks=(2, 2, 1),
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def loss_of(vae: AutoencoderTiny, x: Tensor) -> tuple[Tensor, Tensor]:
    """Error of the picture and of its edges, with latents held near unit variance; also the squared error alone."""
    z = vae.encoder(x)
    error = vae.decoder(z + 0.1 * torch.randn_like(z)) - x
    edges = sum(torch.diff(error, dim=d).abs().mean() for d in (2, 3))
    spread = 0.05 * ((z**2).mean() - 1) ** 2 + 0.02 * relu(z.abs() - 2.5).mean()
    centre = 0.05 * (z.mean((0, 2, 3)) ** 2).mean()
    squared = (error**2).mean()
    return error.abs().mean() + squared + 0.5 * edges + spread + centre, squared.detach()


def crops(pool: Tensor) -> Tensor:
    """`[BATCH, 3, CROP, CROP]`: a quarter of the cost of whole pictures, and the edges are what is hard."""
    room = pool.shape[-1] - CROP + 1
    rows, ys, xs = (torch.randint(0, n, (BATCH,)).tolist() for n in (len(pool), room, room))
    return torch.stack([pool[r, :, y : y + CROP, x : x + CROP] for r, y, x in zip(rows, ys, xs, strict=True)])


def train(out: Path, steps: int, start: Path | None, seed: int = 0) -> None:
    begin(seed)
    log, rng = Log("vae"), np.random.default_rng(seed + (1 if start else 0))
    vae = AutoencoderTiny.from_pretrained(start) if start else new_vae()
    vae = vae.train().to(memory_format=torch.channels_last)
    pool = torch.from_numpy(np.stack([busy_picture(rng) for _ in range(POOL)]).transpose(0, 3, 1, 2).copy())
    weights = list(vae.parameters())
    adam = torch.optim.AdamW(weights, lr=LR, betas=(0.9, 0.98), weight_decay=1e-4, fused=True)
    average = Averaged(weights)
    for i in range(1, steps + 1):
        scale = min(1, i / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * i / steps)))
        adam.param_groups[0]["lr"] = LR * scale
        x = crops(pool).contiguous(memory_format=torch.channels_last)
        loss, squared = loss_of(vae, x)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        average.update()
        if i % 100 == 0:
            log(step=i, psnr_db=10 * math.log10(4 / squared.item()))
        if i % 300 == 0:
            vae.save_pretrained(out.with_name(out.name + "-part"))
    average.swap()
    finish(vae.eval().to(memory_format=torch.contiguous_format), out, log)


@torch.inference_mode()
def finish(vae: AutoencoderTiny, out: Path, log: Log) -> None:
    """Measures the round trip on held-out scenes, writes the latents' mean and spread into the configuration, saves."""
    held_out = scenes(5, 300, held_out=True)
    x = torch.from_numpy(draw_all(held_out))
    z = torch.cat([vae.encode(part).latents for part in x.split(50)])
    y = torch.cat([vae.decode(part).sample for part in z.split(50)]).clamp(-1, 1)
    pictures = [as_pixels(p.permute(1, 2, 0).numpy()) for p in y]
    vae.register_to_config(scaling_factor=1 / z.std().item(), shift_factor=z.mean().item())
    vae.save_pretrained(out)
    log(held_out_psnr_db=10 * math.log10(4 / ((y - x) ** 2).mean().item()), round_trip=table(pictures, held_out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--start", type=Path, help="a trained autoencoder to go on from, for a second cosine")
    a = parser.parse_args()
    train(a.out, a.steps, a.start)


if __name__ == "__main__":
    main()
