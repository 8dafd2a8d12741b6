"""Draws held-out captions into one picture to look at: `python -m models.tiny.grid {image,student,video} OUT.png`"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from . import wan
from .clips import FPS, clips
from .distill import STEPS
from .evaluate import HERE
from .flux import Sampling, generate, load_pipeline
from .oracle import Pixels
from .scenes import scenes
from .training import begin

GAP, GROUND = 2, 60


def tiled(rows: Sequence[Sequence[Pixels]]) -> Pixels:
    """The pictures row by row, each in a cell of its row's largest."""
    lines = []
    for row in rows:
        height, width = (max(p.shape[d] for p in row) + GAP for d in (0, 1))
        line = np.full((height, width * len(row), 3), GROUND, np.uint8)
        for k, p in enumerate(row):
            line[: p.shape[0], k * width : k * width + p.shape[1]] = p
        lines.append(line)
    across = max(line.shape[1] for line in lines)
    return np.concatenate(
        [np.pad(w, ((0, 0), (0, across - w.shape[1]), (0, 0)), constant_values=GROUND) for w in lines]
    )


def picture_rows(folder: Path, sizes: Sequence[tuple[int, int]], how: Sampling, across: int) -> list[list[Pixels]]:
    pipe, told = load_pipeline(folder), scenes(779, across * len(sizes), held_out=True)
    rows = []
    for k, (width, height) in enumerate(sizes):
        captions = [s.caption for s in told[k * across : (k + 1) * across]]
        n = max(1, across * 64 // width)
        rows.append(generate(pipe, captions[:n], Sampling(width, height, how.steps, how.guidance, seed=k)))
        print(*captions[:n], sep="\n")
    return rows


def clip_rows(folder: Path, count: int) -> list[list[Pixels]]:
    """Every frame of four seconds."""
    shown = clips(92, count, held_out=True)
    captions = ["a red circle moving right on a black background", *(c.caption for c in shown[1:])]
    print(*captions, sep="\n")
    made = wan.generate(wan.load_pipeline(folder), captions, wan.VideoSampling(frames=4 * FPS))
    return [list(m) for m in made]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("image", "student", "video"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", type=Path, default=HERE)
    parser.add_argument("--square", action="store_true", help="64 x 64 alone")
    a = parser.parse_args()
    begin(0)
    if a.which == "video":
        rows = clip_rows(a.weights / "video", 6)
    elif a.which == "student":
        rows = picture_rows(a.weights / "image_student", [(64, 64)] * 2, Sampling(steps=STEPS, guidance=1.0), 10)
    else:
        sizes = [(64, 64)] * 3 + ([] if a.square else [(96, 64), (64, 96), (128, 128), (256, 256)])
        rows = picture_rows(a.weights / "image", sizes, Sampling(), 10)
    Image.fromarray(tiled(rows)).save(a.out, optimize=True)


if __name__ == "__main__":
    main()
