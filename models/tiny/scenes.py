"""Captioned scenes of coloured shapes, drawn by formula, and the split that holds captions back for the tests.

Every length is a fraction of the picture's short side, so one scene can be drawn at any size.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

RGB = {
    "red": (220, 40, 40),
    "green": (40, 170, 70),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 50),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
    "gray": (128, 128, 128),
}
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
BACKGROUNDS = ("white", "black", "green", "blue", "yellow", "gray")
SHAPES = ("circle", "square", "triangle", "ring", "cross")
RADII = {"small": 0.13, "large": 0.21}
PLACES = {
    "above": ((0.5, 0.26), (0.5, 0.74)),
    "below": ((0.5, 0.74), (0.5, 0.26)),
    "left of": ((0.26, 0.5), (0.74, 0.5)),
    "right of": ((0.74, 0.5), (0.26, 0.5)),
}
HELD_OUT_SHARE = 26 / 256

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Thing:
    """One shape; `x` and `y` are its centre as fractions of the picture's width and height."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float = 0.0

    @property
    def r(self) -> float:
        return self.radius or RADII[self.size]


@dataclass(frozen=True)
class Scene:
    """A picture and what is said of it; `silent` names the words that the caption leaves out."""

    caption: str
    things: tuple[Thing, ...]
    background: str
    silent: frozenset[str] = frozenset()


def distance(shape: str, dx: Floats, dy: Floats, r: float) -> Floats:
    """Signed distance to the outline, negative inside; exact for the circle, a bound for the others."""
    match shape:
        case "circle":
            return np.hypot(dx, dy) - r
        case "ring":
            return np.abs(np.hypot(dx, dy) - r * 0.78) - r * 0.26
        case "square":
            return np.maximum(np.abs(dx), np.abs(dy)) - r * 0.88
        case "triangle":
            return np.maximum(dy - r * 0.8, (np.abs(dx) * 1.9 - (dy + r)) / 2.15)
        case "cross":
            upright = np.maximum(np.abs(dx) - r * 0.32, np.abs(dy) - r)
            return np.minimum(upright, np.maximum(np.abs(dx) - r, np.abs(dy) - r * 0.32))
    raise ValueError(f"shape {shape!r} is none of {', '.join(SHAPES)}")


def draw(things: Sequence[Thing], background: str, width: int = 64, height: int = 64) -> Floats:
    """The picture `[height, width, 3]` in -1..1, edges smoothed over 1.5 pixels."""
    short = min(width, height)
    across = ((np.arange(width, dtype=np.float32) + 0.5) / short)[None]
    down = ((np.arange(height, dtype=np.float32) + 0.5) / short)[:, None]
    picture = np.empty((height, width, 3), np.float32)
    picture[:] = RGB[background]
    for t in things:
        d = distance(t.shape, across - t.x * width / short, down - t.y * height / short, t.r)
        cover = np.clip(0.5 - d * short / 1.5, 0, 1)[..., None]
        picture = picture * (1 - cover) + cover * np.array(RGB[t.colour], np.float32)
    return (picture / 127.5 - 1).astype(np.float32)


def draw_all(scenes: Sequence[Scene], width: int = 64, height: int = 64) -> Floats:
    """`[scenes, 3, height, width]` in -1..1."""
    return np.stack([draw(s.things, s.background, width, height) for s in scenes]).transpose(0, 3, 1, 2).copy()


def pick(rng: Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def random_scene(rng: Generator, count: int | None = None) -> Scene:
    """One object, or two in one of four relations (60 % of the scenes), each near the place its caption names."""
    background = pick(rng, BACKGROUNDS)
    colours = [c for c in COLOURS if c != background]
    if count is None:
        count = 2 if rng.random() < 0.6 else 1
    relation = pick(rng, tuple(PLACES)) if count == 2 else ""
    places = PLACES[relation] if count == 2 else ((0.5, 0.5),)
    jitter = 0.03 if count == 2 else 0.06
    things = tuple(
        Thing(
            pick(rng, SHAPES),
            pick(rng, colours),
            pick(rng, tuple(RADII)),
            x + float(rng.uniform(-jitter, jitter)),
            y + float(rng.uniform(-jitter, jitter)),
        )
        for x, y in places
    )
    return Scene(caption_of(things, relation, background, frozenset()), things, background)


def caption_of(things: Sequence[Thing], relation: str, background: str, silent: frozenset[str]) -> str:
    names = [f"a {t.colour} {t.shape}" if "size" in silent else f"a {t.size} {t.colour} {t.shape}" for t in things]
    said = f" {relation} ".join(names)
    return said if "background" in silent else f"{said} on a {background} background"


def is_held_out(caption: str) -> bool:
    """About 10 % of all captions, by their hash: no training set ever shows one of them."""
    return hashlib.md5(caption.encode(), usedforsecurity=False).digest()[0] < HELD_OUT_SHARE * 256


def scenes(seed: int, n: int, *, held_out: bool = False, count: int | None = None) -> list[Scene]:
    rng = np.random.default_rng(seed)
    out: list[Scene] = []
    while len(out) < n:
        s = random_scene(rng, count)
        if is_held_out(s.caption) == held_out:
            out.append(s)
    return out


def shorten(rng: Generator, scene: Scene, share: float = 0.12) -> Scene:
    """Now and then leaves the sizes, rarely the background, unsaid: people ask for "a red circle"."""
    words = [w for w, p in (("size", share), ("background", share / 3)) if rng.random() < p]
    if not words:
        return scene
    relation = next((r for r in PLACES if f" {r} " in scene.caption), "")
    silent = frozenset(words)
    return replace(scene, caption=caption_of(scene.things, relation, scene.background, silent), silent=silent)


def busy_picture(rng: Generator, width: int = 64, height: int = 64) -> Floats:
    """Up to five shapes anywhere, of any size: what an autoencoder must carry, whatever a caption says."""
    background = pick(rng, BACKGROUNDS)
    colours = [c for c in COLOURS if c != background]
    things = [
        Thing(
            pick(rng, SHAPES),
            pick(rng, colours),
            "",
            float(rng.uniform(0.05, 0.95)),
            float(rng.uniform(0.05, 0.95)),
            radius=float(rng.uniform(0.09, 0.25)),
        )
        for _ in range(int(rng.integers(1, 6)))
    ]
    return draw(things, background, width, height)
