"""Teaches a student to take four steps without guidance where the teacher takes twelve with it.

From noised pictures at one of the student's four noise levels the teacher walks three guided Euler steps down to the
next one; the student learns the straight line between. `python -m models.tiny.distill TEACHER OUT [--steps N]`
"""

import argparse
import copy
from pathlib import Path

import torch
from torch import Tensor

from .flux import SHIFT, Sampling, TinyFlux, generate, load_pipeline
from .oracle import table
from .scenes import scenes
from .train import Bucket, Pool, encode
from .training import Log, Optimiser, begin

STEPS, SUBSTEPS, GUIDANCE, LR = 4, 3, 2.0, 3e-4
BUCKETS = (
    Bucket(64, 64, 0.3, 2000),
    Bucket(96, 64, 0.18, 1000),
    Bucket(64, 96, 0.18, 1000),
    Bucket(128, 128, 0.19, 800),
    Bucket(256, 256, 0.15, 240),
)


def levels(steps: int) -> Tensor:
    """The sampler's noise levels for `steps`, from 1 to 0."""
    even = torch.linspace(1, 0, steps + 1)
    return SHIFT * even / (1 + (SHIFT - 1) * even)


@torch.no_grad()
def walk(teacher: TinyFlux, pool: Pool, x: Tensor, told: tuple[Tensor, Tensor], line: Tensor) -> Tensor:
    """`x` after one guided Euler step between each two neighbours of its row in `line` `[batch, SUBSTEPS + 1]`."""
    silent = tuple(s.expand_as(t) for s, t in zip(pool.silence, told, strict=True))
    both = (torch.cat([told[0], silent[0]]), torch.cat([told[1], silent[1]]))
    for here, there in zip(line.T, line.T[1:], strict=False):
        v, n = teacher.velocity(torch.cat([x, x]), torch.cat([here, here]), both, pool.at).chunk(2)
        x = x + (there - here)[:, None, None] * (n + GUIDANCE * (v - n))
    return x


def train(teacher_folder: Path, out: Path, steps: int, seed: int = 0) -> None:
    begin(seed)
    log, model = Log("student"), TinyFlux.load(teacher_folder)
    pools = [encode(model, b, 3000 + seed + i) for i, b in enumerate(BUCKETS)]
    shares = torch.tensor([b.share for b in BUCKETS])
    student = TinyFlux(model.vae, model.clip, model.t5, copy.deepcopy(model.transformer).train())
    optimiser, line = Optimiser(student.transformer.named_parameters(), LR, muon=False), levels(STEPS * SUBSTEPS)
    losses: list[float] = []
    for step in range(1, steps + 1):
        pool = pools[int(torch.multinomial(shares, 1))]
        rows = torch.randint(0, len(pool.latents), (pool.batch,))
        leg = torch.randint(0, STEPS, (pool.batch, 1)) * SUBSTEPS
        stops = line[leg + torch.arange(SUBSTEPS + 1)]
        here, there = stops[:, 0], stops[:, -1]
        told = (pool.told[0][rows], pool.told[1][rows])
        x = torch.lerp(pool.latents[rows], torch.randn_like(pool.latents[rows]), here[:, None, None])
        straight = (walk(model, pool, x, told, stops) - x) / (there - here)[:, None, None]
        loss = (student.velocity(x, here, told, pool.at) - straight).square().mean()
        optimiser.step(loss, min(1, step / 10) * max(0.02, 1 - step / steps))
        losses.append(loss.item())
        if step % 25 == 0:
            log(step=step, loss=sum(losses[-25:]) / 25)
    optimiser.average.swap()
    student.save(out)
    told_scenes = scenes(778, 60, held_out=True)
    how = Sampling(steps=STEPS, guidance=1.0)
    log(**table(generate(load_pipeline(out), [s.caption for s in told_scenes], how), told_scenes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    a = parser.parse_args()
    train(a.teacher, a.out, a.steps)


if __name__ == "__main__":
    main()
