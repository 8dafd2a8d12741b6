"""Trains the picture model's transformer by flow matching, in three stages that can be stopped and resumed.

`python -m models.tiny.train square OUT --vae VAE`   64 x 64 from nothing, text pretraining first
`python -m models.tiny.train sizes OUT --start FROM` goes on with 96 x 64, 64 x 96 and mostly 128 x 128
`python -m models.tiny.train large OUT --start FROM` goes on with 256 x 256 first of all
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .captions import tokens
from .flux import Sampling, TinyFlux, generate, load_pipeline, positions, sigma_mean
from .oracle import table
from .scenes import draw_all, scenes
from .text import captioned, pretrain
from .training import Log, Optimiser, begin, save_state

TOKENS_A_BATCH = 32 * 64
SILENCE = 0.1  # share of captions emptied, for classifier-free guidance


@dataclass(frozen=True)
class Bucket:
    width: int
    height: int
    share: float
    pool: int
    spread: float = 1.0  # of the noise's logit


@dataclass(frozen=True)
class Stage:
    buckets: tuple[Bucket, ...]
    steps: int
    lr: float
    hold: float  # share of the steps before the rate falls towards zero
    save_every: int = 100


STAGES = {
    "square": Stage((Bucket(64, 64, 1.0, 12000),), steps=1850, lr=3e-3, hold=0.75),
    "sizes": Stage(
        (
            Bucket(64, 64, 0.22, 6000),
            Bucket(96, 64, 0.19, 4000),
            Bucket(64, 96, 0.19, 4000),
            Bucket(128, 128, 0.38, 4000),
            Bucket(256, 256, 0.02, 400),
        ),
        steps=5200,
        lr=2e-3,
        hold=0.8,
    ),
    "large": Stage(
        (
            Bucket(256, 256, 0.44, 2400, spread=1.3),
            Bucket(64, 64, 0.09, 6000),
            Bucket(96, 64, 0.16, 6000),
            Bucket(64, 96, 0.13, 6000),
            Bucket(128, 128, 0.18, 4000),
        ),
        steps=4000,
        lr=1.5e-3,
        hold=0.65,
        save_every=250,
    ),
}


@dataclass(frozen=True)
class Pool:
    """Encoded training pictures of one size and their read captions; `silence` is the empty caption, read."""

    latents: Tensor
    told: tuple[Tensor, Tensor]
    silence: tuple[Tensor, Tensor]
    at: Tensor
    sigma_mean: float
    spread: float
    batch: int

    def sample(self) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Clean latents, captions (some emptied) and noise levels of one batch."""
        rows = torch.randint(0, len(self.latents), (self.batch,))
        each, pooled = self.told[0][rows].clone(), self.told[1][rows].clone()
        emptied = torch.rand(self.batch) < SILENCE
        each[emptied], pooled[emptied] = self.silence
        return (
            self.latents[rows],
            (each, pooled),
            torch.sigmoid(self.sigma_mean + self.spread * torch.randn(self.batch)),
        )


def encode(model: TinyFlux, bucket: Bucket, seed: int) -> Pool:
    scenes_told = captioned(seed, bucket.pool)
    w, h = bucket.width, bucket.height
    parts = [scenes_told[k : k + 64] for k in range(0, len(scenes_told), 64)]
    latents = torch.cat([model.latents(torch.from_numpy(draw_all(p, w, h))) for p in parts]).clone()
    each, pooled = model.read(tokens([""]))
    return Pool(
        latents,
        model.read(tokens([s.caption for s in scenes_told])),
        (each[0], pooled[0]),
        positions(w, h),
        sigma_mean(w, h),
        bucket.spread,
        batch=max(4, TOKENS_A_BATCH // latents.shape[1]),
    )


def rate(step: int, stage: Stage) -> float:
    """Sixty steps of warming up, constant until `hold`, then down to one percent in a straight line."""
    done = step / stage.steps
    return min(1, step / 60) * (1 if done < stage.hold else max(0.01, (1 - done) / (1 - stage.hold + 1e-9)))


def train(stage: Stage, model: TinyFlux, out: Path, seed: int) -> None:
    log = Log(out.name)
    pools = [encode(model, b, 1000 + seed + i) for i, b in enumerate(stage.buckets)]
    shares = torch.tensor([b.share for b in stage.buckets])
    log(encoded=sum(b.pool for b in stage.buckets))
    optimiser, state, first = (
        Optimiser(model.transformer.named_parameters(), stage.lr),
        out.with_name(out.name + "-state.pt"),
        1,
    )
    if state.exists():
        kept = torch.load(state)
        optimiser.load(kept["optimiser"])
        first = kept["step"] + 1
    model.transformer.train()
    losses: list[float] = []
    for step in range(first, stage.steps + 1):
        torch.manual_seed(seed * 1_000_003 + step)  # a resumed stage draws what an unbroken one draws
        pool = pools[int(torch.multinomial(shares, 1))]
        x, told, sigma = pool.sample()
        noise = torch.randn_like(x)
        v = model.velocity(torch.lerp(x, noise, sigma[:, None, None]), sigma, told, pool.at)
        loss = (v - (noise - x)).square().mean()
        optimiser.step(loss, rate(step, stage))
        losses.append(loss.item())
        if step % 50 == 0:
            log(step=step, loss=sum(losses[-50:]) / len(losses[-50:]))
        if step % stage.save_every == 0 or step == stage.steps:
            save_state(state, {"optimiser": optimiser.state(), "step": step})
            optimiser.average.swap()
            model.save(out)
            optimiser.average.swap()
            log(step=step, **glance(out, stage))


def glance(folder: Path, stage: Stage) -> dict[str, float]:
    """Share of up to 40 held-out captions that come true in full, at the stage's first size."""
    w, h = stage.buckets[0].width, stage.buckets[0].height
    told = scenes(778, max(12, 40 * 64 * 64 // (w * h)), held_out=True)
    pictures = generate(load_pipeline(folder), [s.caption for s in told], Sampling(w, h, steps=6))
    seen = table(pictures, told)
    return {"one_right": seen["1"]["right"], "two_right": seen["2"]["right"], "one_shape": seen["1"]["shape"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vae", type=Path, help="the trained autoencoder, for a model from nothing")
    parser.add_argument("--start", type=Path, help="the pipeline to go on from")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    if (a.vae is None) == (a.start is None):
        parser.error("give --vae to begin a model or --start to go on with one")
    begin(a.seed)
    if a.out.with_name(a.out.name + "-state.pt").exists():
        model = TinyFlux.load(a.out)  # for its text encoders; the transformer is in the checkpoint
    elif a.start:
        model = TinyFlux.load(a.start)
    else:
        model = TinyFlux.new(a.vae)
        pretrain(model.t5, model.clip)
    train(STAGES[a.stage], model, a.out, a.seed)


if __name__ == "__main__":
    main()
