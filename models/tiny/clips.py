"""Captioned clips of one shape that moves at a constant speed and re-enters where it left, and what they must show.

The picture is a torus: a lap takes two seconds, so every second one repeats and a clip of any length is made of the
frames of one lap. A shape is always in the middle of one of the transformer's 4 x 4 tokens, a step apart: all shapes
are cut into tokens in the same way, and the next frame is this one, shifted by a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from .captions import DIRECTIONS, IGNORED, SIZES, TOKENS
from .oracle import PIXELS_MIN, Pixels, nearest
from .scenes import BACKGROUNDS, COLOURS, RADII, RGB, SHAPES, Floats, distance, is_held_out, pick

SIDE, FPS, LAP = 64, 2, 4  # pixels, frames a second, frames in which a shape comes back to where it began
STEP = {"still": (0, 0), "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Clip:
    """`x` and `y`: where the shape is in the first frame, as fractions of the side."""

    shape: str
    colour: str
    size: str
    direction: str
    background: str
    x: float
    y: float
    silent: frozenset[str] = frozenset()

    @property
    def caption(self) -> str:
        size = "" if "size" in self.silent else f"{self.size} "
        moving = "" if self.direction == "still" else f" moving {self.direction}"
        where = "" if "background" in self.silent else f" on a {self.background} background"
        return f"a {size}{self.colour} {self.shape}{moving}{where}"


def random_clip(rng: Generator) -> Clip:
    background = pick(rng, BACKGROUNDS)
    return Clip(
        pick(rng, SHAPES),
        pick(rng, [c for c in COLOURS if c != background]),
        pick(rng, tuple(RADII)),
        pick(rng, DIRECTIONS),
        background,
        (int(rng.integers(LAP)) + 0.5) / LAP,
        (int(rng.integers(LAP)) + 0.5) / LAP,
    )


def clips(seed: int, n: int, *, held_out: bool = False, terse: float = 0.0) -> list[Clip]:
    """Clips whose full captions are held out, or are not; a share of `terse` then leaves its size unsaid."""
    rng = np.random.default_rng(seed)
    out: list[Clip] = []
    while len(out) < n:
        clip = random_clip(rng)
        if is_held_out(clip.caption) == held_out:
            silent = [w for w, p in (("size", terse), ("background", terse / 3)) if rng.random() < p]
            out.append(replace(clip, silent=frozenset(silent)))
    return out


def frame(clip: Clip, at: int) -> Floats:
    """`[3, SIDE, SIDE]` in -1..1"""
    across, down = STEP[clip.direction]
    x, y = clip.x + across * at / LAP, clip.y + down * at / LAP
    grid = (np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE
    dx, dy = (grid - x + 0.5) % 1 - 0.5, (grid - y + 0.5) % 1 - 0.5
    d = distance(clip.shape, dx[None].astype(np.float32), dy[:, None].astype(np.float32), RADII[clip.size])
    cover = np.clip(0.5 - d * SIDE / 1.5, 0, 1)[..., None]
    picture = np.array(RGB[clip.background]) * (1 - cover) + cover * np.array(RGB[clip.colour])
    return (picture / 127.5 - 1).astype(np.float32).transpose(2, 0, 1)


def lap(clip: Clip) -> Floats:
    """`[LAP, 3, SIDE, SIDE]`"""
    if clip.direction == "still":
        return np.repeat(frame(clip, 0)[None], LAP, 0)
    return np.stack([frame(clip, i) for i in range(LAP)])


def targets(shown: Sequence[Clip], ids: Tensor) -> Tensor:
    """`[clips, TOKENS, 5]`: what every token of a caption must tell: shape, colour, size, direction, background."""
    out = torch.full((len(shown), TOKENS, 5), IGNORED)
    for i, c in enumerate(shown):
        size = len(SIZES) if "size" in c.silent else SIZES.index(c.size)
        background = len(BACKGROUNDS) if "background" in c.silent else BACKGROUNDS.index(c.background)
        said = (SHAPES.index(c.shape), COLOURS.index(c.colour), size, DIRECTIONS.index(c.direction), background)
        out[i, ids[i] != 0] = torch.tensor(said)
    return out


def centre(where: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    """Mean place `(x, y)` of the marked pixels on the torus, 0..1; none where too few are marked."""
    if where.sum() < PIXELS_MIN:
        return None
    angle = (np.arange(SIDE) + 0.5) / SIDE * 2 * np.pi
    out = []
    for axis in (0, 1):
        weight = where.sum(axis)
        out.append(np.angle((weight * np.exp(1j * angle)).sum()) / (2 * np.pi) % 1)
    return np.array(out)


@dataclass(frozen=True)
class Shown:
    """What of a clip came true: its background and colour in every frame, its motion between all of them."""

    background: bool
    colour: bool
    motion: bool
    first_frame: bool


def judge(frames: Pixels, clip: Clip) -> Shown:
    """Looks at `frames` `[n, SIDE, SIDE, 3]`. The motion is right where the mean step is within a third of a lap's."""
    grounds, colours, places = [], [], []
    for im in frames.astype(float):
        ground = np.median(im.reshape(-1, 3), 0)
        grounds.append(nearest(ground, BACKGROUNDS) == clip.background)
        off = np.abs(im - np.array(RGB[clip.background], float)).sum(-1) > 90
        colours.append(off.sum() >= PIXELS_MIN and nearest(np.median(im[off], 0), COLOURS) == clip.colour)
        places.append(centre(off))
    steps = [(b - a + 0.5) % 1 - 0.5 for a, b in pairwise(places) if a is not None and b is not None]
    meant = np.array(STEP[clip.direction]) / LAP
    enough = len(steps) == len(frames) - 1
    motion = enough and bool(np.abs(np.mean(steps, 0) - meant).max() < 1 / (3 * LAP))
    return Shown(all(grounds), all(colours), motion, grounds[0] and colours[0])
