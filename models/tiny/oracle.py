"""Reads from the pixels what a picture shows, and counts how much of its caption came true. No model is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .scenes import BACKGROUNDS, COLOURS, RADII, RGB, SHAPES, Scene, Thing, distance, draw

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
PIXELS_MIN = 12  # fewer are no object


@dataclass(frozen=True)
class Seen:
    """What came true of one object."""

    colour: bool
    shape: bool
    size: bool


@dataclass(frozen=True)
class Verdict:
    background: bool
    things: tuple[Seen, ...]

    @property
    def right(self) -> bool:
        """The background and, of every object in the half that the caption names, colour, shape and size."""
        return self.background and all(t.colour and t.shape and t.size for t in self.things)


def nearest(colour: NDArray[np.float64], names: Sequence[str]) -> str:
    return min(names, key=lambda n: float(np.abs(np.array(RGB[n], float) - colour).sum()))


@lru_cache
def templates(short: int) -> tuple[int, Mask, list[tuple[str, str]]]:
    """Every shape in both sizes at 25 offsets of up to 2/64 of the short side; the half width of the window first."""
    half, unit = int(0.25 * short) + 3, max(1, short // 64)
    grid = (np.arange(-half, half) / short).astype(np.float32)
    masks, names = [], []
    for shape in SHAPES:
        for size, r in RADII.items():
            for ox in range(-2, 3):
                for oy in range(-2, 3):
                    dx, dy = (grid - ox * unit / short)[None], (grid - oy * unit / short)[:, None]
                    masks.append(distance(shape, dx, dy, r) < 0)
                    names.append((shape, size))
    return half, np.stack(masks), names


def read_thing(im: NDArray[np.float64], where: Mask, from_background: NDArray[np.float64], thing: Thing) -> Seen:
    if where.sum() < PIXELS_MIN:
        return Seen(False, False, False)
    own = np.median(im[where], 0)
    colour = nearest(own, COLOURS) == thing.colour
    where = where & (np.abs(im - own).sum(-1) < from_background)
    if where.sum() < PIXELS_MIN:
        return Seen(colour, False, False)
    half, masks, names = templates(min(im.shape[:2]))
    ys, xs = np.where(where)
    y, x = (ys.min() + ys.max() + 1) // 2, (xs.min() + xs.max() + 1) // 2
    seen = np.pad(where, half)[y : y + 2 * half, x : x + 2 * half]
    overlap = (masks & seen).sum((1, 2)) / np.maximum(1, (masks | seen).sum((1, 2)))
    shape, size = names[int(overlap.argmax())]
    return Seen(colour, bool(shape == thing.shape and overlap.max() > 0.5), size == thing.size)


def judge(picture: Pixels, scene: Scene) -> Verdict:
    """Compares `picture` `[height, width, 3]` with its scene; an object is looked for in the half its caption names."""
    im = picture.astype(float)
    height, width, _ = im.shape
    corners = [im[y : y + 4, x : x + 4].reshape(-1, 3) for y in (0, height - 4) for x in (0, width - 4)]
    background = nearest(np.median(np.concatenate(corners), 0), BACKGROUNDS) == scene.background
    off = np.abs(im - np.array(RGB[scene.background], float)).sum(-1)
    across, down = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    seen = []
    for thing in scene.things:
        where = off > 45
        if len(scene.things) == 2:
            a, b = scene.things
            sideways = abs(a.x - b.x) > 0.2
            where &= (across < 0.5) == (thing.x < 0.5) if sideways else (down < 0.5) == (thing.y < 0.5)
        seen.append(read_thing(im, where, off, thing))
    return Verdict(background, tuple(seen))


def table(pictures: Sequence[Pixels], scenes: Sequence[Scene]) -> dict[str, dict[str, float]]:
    """Shares of what came true, by the number of objects: `{"1": {"n", "background", "colour", ...}, "2": ...}`."""
    out: dict[str, dict[str, float]] = {}
    for count in (1, 2):
        verdicts = [judge(p, s) for p, s in zip(pictures, scenes, strict=True) if len(s.things) == count]
        if verdicts:
            things = [t for v in verdicts for t in v.things]
            out[str(count)] = {
                "n": len(verdicts),
                "background": float(np.mean([v.background for v in verdicts])),
                "colour": float(np.mean([t.colour for t in things])),
                "shape": float(np.mean([t.shape for t in things])),
                "size": float(np.mean([t.size for t in things])),
                "right": float(np.mean([v.right for v in verdicts])),
            }
    return out


def as_pixels(picture: NDArray[np.float32]) -> Pixels:
    """-1..1 to 0..255."""
    return ((picture.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)


def drawn(scene: Scene, width: int = 64, height: int = 64) -> Pixels:
    return as_pixels(draw(scene.things, scene.background, width, height))
