"""Trains the video transformer by flow matching on laps of moving shapes; can be stopped and resumed.

`python -m models.tiny.train_video OUT --vae WAN_VAE [--start FROM] [--steps N]`
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .captions import DIRECTIONS, tokens
from .clips import LAP, Clip, clips, judge, lap
from .scenes import COLOURS, pick
from .training import Log, Optimiser, begin, save_state
from .wan import TinyWan, VideoSampling, generate, load_pipeline, pretrain, read, timesteps

POOL = 3000
# (frames, of those given, clips a batch, share of the batches): single laps show many captions a step, long clips hold
# together, and a lap that goes on from a given one is what a streaming session asks for.
LENGTHS = ((4, 0, 64, 0.3), (8, 0, 32, 0.35), (24, 0, 10, 0.15), (8, 4, 32, 0.2))
LR, HOLD, SILENCE = 3e-3, 0.7, 0.1
# Logit of the noise of one frame; more frames of one motion tell more of it, as more pixels do (flux.sigma_mean).
SIGMA_MEAN, SIGMA_SPREAD = 1.3, 1.1


HORIZON = 0.998  # of the averaged weights


@dataclass(frozen=True)
class Laps:
    """Normalised latents `[POOL, LAP, channels, h, w]` and read captions; `silence` is the empty caption, read.

    `before`: a lap of the same shape that ends where the clip begins, but may move otherwise or have another colour.
    """

    latents: Tensor
    before: Tensor
    told: Tensor
    silence: Tensor

    def sample(self, frames: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Clean clips `[batch, channels, frames, h, w]` that begin anywhere, captions, and the noise of each clip."""
        rows, begins = torch.randint(0, len(self.latents), (batch,)), torch.randint(0, LAP, (batch, 1))
        at = (begins + torch.arange(frames)) % LAP
        told = self.told[rows].clone()
        told[torch.rand(batch) < SILENCE] = self.silence
        down, across = torch.randint(0, self.latents.shape[-1], (2,)).tolist()
        clean = self.latents[rows[:, None], at].transpose(1, 2).roll((down, across), (3, 4))
        return clean, told, noise_levels(frames, batch)

    def next_laps(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same for clips of two laps, of which the first is given; `noise` of the second."""
        rows = torch.randint(0, len(self.latents), (batch,))
        told = self.told[rows].clone()
        told[torch.rand(batch) < SILENCE] = self.silence
        down, across = torch.randint(0, self.latents.shape[-1], (2,)).tolist()
        clean = torch.cat([self.before[rows], self.latents[rows]], 1).transpose(1, 2).roll((down, across), (3, 4))
        return clean, told, noise_levels(LAP, batch)


def noise_levels(frames: int, batch: int) -> Tensor:
    return torch.sigmoid(SIGMA_MEAN + 0.5 * math.log(frames) + SIGMA_SPREAD * torch.randn(batch))


@torch.inference_mode()
def encode(model: TinyWan, seed: int) -> Laps:
    shown = clips(seed, POOL, terse=0.25)
    mean, std = (
        torch.tensor(v).view(1, -1, 1, 1, 1) for v in (model.vae.config.latents_mean, model.vae.config.latents_std)
    )

    def coded(shown: Sequence[Clip]) -> Tensor:
        latents = []
        for k in range(0, POOL, 4):
            laps = np.stack([lap(c) for c in shown[k : k + 4]])
            laps = np.concatenate([laps, laps[:, :1]], 1)  # the class codes 4 k + 1 frames
            z = (model.vae.encode(torch.from_numpy(laps).transpose(1, 2)).latent_dist.mode() - mean) / std
            latents.append(z[:, :, :LAP].transpose(1, 2))
        return torch.cat(latents).clone()

    said = read(model.text, tokens([c.caption for c in shown])).clone()
    silence = read(model.text, tokens([""]))[0].clone()
    rng = np.random.default_rng(seed + 1)
    return Laps(coded(shown), coded([other(rng, c) for c in shown]), said, silence)


def other(rng: np.random.Generator, clip: Clip) -> Clip:
    """The lap before it: half of them move otherwise, a fifth have another colour."""
    if rng.random() < 0.5:
        clip = replace(clip, direction=pick(rng, DIRECTIONS))
    if rng.random() < 0.2:
        clip = replace(clip, colour=pick(rng, [c for c in COLOURS if c != clip.background]))
    return clip


def channel_weights(model: TinyWan) -> Tensor:
    """`[channels, 1, 1, 1]`, mean 1: as the spread of each latent channel.

    The colour of a shape is in the first three of 24, which normalised latents count like all others.
    """
    std = torch.tensor(model.vae.config.latents_std)
    return (std / std.mean()).view(-1, 1, 1, 1)


def train(model: TinyWan, out: Path, steps: int, *, seed: int = 0, save_every: int = 100) -> None:
    log = Log("video")
    pool = encode(model, 2000 + seed)
    log(encoded=POOL)
    optimiser, state, first = Optimiser(model.transformer.named_parameters(), LR), out.with_name("video-state.pt"), 1
    optimiser.average.horizon = HORIZON
    weight = channel_weights(model)
    if state.exists():
        kept = torch.load(state)
        optimiser.load(kept["optimiser"])
        first = kept["step"] + 1
    model.transformer.train()
    shares = torch.tensor([s for *_, s in LENGTHS])
    losses: list[float] = []
    for step in range(first, steps + 1):
        torch.manual_seed(seed * 1_000_003 + step)  # a resumed stage draws what an unbroken one draws
        frames, given, batch, _ = LENGTHS[int(torch.multinomial(shares, 1))]
        x, told, sigma = pool.next_laps(batch) if given else pool.sample(frames, batch)
        noise = torch.randn_like(x)
        noised = torch.lerp(x, noise, sigma[:, None, None, None, None])
        noised[:, :, :given] = x[:, :, :given]
        v = model.transformer(noised, timesteps(1000 * sigma, x, given), told, return_dict=False)[0]
        loss = ((v - (noise - x)).square() * weight)[:, :, given:].mean()
        done = step / steps
        optimiser.step(loss, min(1, step / 60) * (1 if done < HOLD else max(0.01, (1 - done) / (1 - HOLD))))
        losses.append(loss.item())
        if step % 50 == 0:
            log(step=step, loss=sum(losses[-50:]) / len(losses[-50:]))
        if step % save_every == 0 or step == steps:
            save_state(state, {"optimiser": optimiser.state(), "step": step})
            optimiser.average.swap()
            model.save(out)
            optimiser.average.swap()
            log(step=step, **glance(out))


def glance(folder: Path) -> dict[str, float]:
    """Shares of 6 held-out captions of which each part came true in four seconds."""
    shown = clips(90, 6, held_out=True)
    made = generate(load_pipeline(folder), [c.caption for c in shown], VideoSampling(steps=8))
    verdicts = [judge(m, c) for m, c in zip(made, shown, strict=True)]
    return {k: float(np.mean([getattr(v, k) for v in verdicts])) for k in ("background", "colour", "motion")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vae", type=Path, help="the trained autoencoder, for a model from nothing")
    parser.add_argument("--start", type=Path, help="the pipeline to go on from")
    parser.add_argument("--steps", type=int, default=25_600)
    a = parser.parse_args()
    if (a.vae is None) == (a.start is None):
        parser.error("give --vae to begin a model or --start to go on with one")
    begin(0)
    if a.out.with_name("video-state.pt").exists():
        model = TinyWan.load(a.out)  # for its text encoder; the transformer is in the checkpoint
    elif a.start:
        model = TinyWan.load(a.start)
    else:
        model = TinyWan.new(a.vae)
        pretrain(model.text)
    train(model, a.out, a.steps)


if __name__ == "__main__":
    main()
