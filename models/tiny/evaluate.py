"""Prints how much of held-out captions comes true, by the pixel oracle, through unmodified diffusers pipelines.

`python -m models.tiny.evaluate [image] [student] [video] [session] [--n N]` reads what is committed beside it.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from . import wan
from .captions import DIRECTIONS
from .clips import FPS, LAP, clips, judge
from .distill import STEPS
from .flux import Sampling, generate, load_pipeline
from .oracle import Pixels, table
from .scenes import pick, scenes
from .training import begin

HERE = Path(__file__).parent
IMAGE_ROWS = (
    Sampling(),
    Sampling(guidance=3.0),
    Sampling(guidance=1.0),
    Sampling(steps=4),
    Sampling(steps=2),
    Sampling(96, 64),
    Sampling(96, 64, steps=4),
    Sampling(64, 96),
    Sampling(64, 96, steps=4),
    Sampling(128, 128, batch=10),
    Sampling(128, 128, steps=4, batch=10),
    Sampling(256, 256, batch=4),
    Sampling(256, 256, steps=4, batch=4),
)
STUDENT_ROWS = (
    Sampling(steps=STEPS, guidance=1.0),
    Sampling(steps=2, guidance=1.0),
    Sampling(96, 64, steps=STEPS, guidance=1.0),
    Sampling(64, 96, steps=STEPS, guidance=1.0),
    Sampling(128, 128, steps=STEPS, guidance=1.0, batch=10),
    Sampling(256, 256, steps=STEPS, guidance=1.0, batch=4),
)
CHUNKS = 6
CLIP_ROWS = tuple(wan.VideoSampling(frames=FPS * s) for s in (4, 8, 12))
HEAD = (
    "| size | steps, guidance | 1 object: background / colour / shape / all | 2 objects: the same | CPU-ms a picture |"
)


@dataclass(frozen=True)
class Clock:
    cpu: float

    @classmethod
    def start(cls) -> "Clock":
        return cls(time.process_time())

    def ms_each(self, n: int) -> int:
        return round((time.process_time() - self.cpu) * 1000 / n)


def pictures(folder: Path, rows: Sequence[Sampling], n: int) -> list[str]:
    pipe, told = load_pipeline(folder), scenes(777, n, held_out=True)
    lines = [HEAD, "|---|---|---|---|---|"]
    for how in rows:
        clock = Clock.start()
        made = generate(pipe, [s.caption for s in told], how)
        each = clock.ms_each(n)
        seen = table(made, told)
        cells = [
            " / ".join(f"{seen[k][c]:.3f}" for c in ("background", "colour", "shape", "right")) for k in ("1", "2")
        ]
        lines.append(f"| {how.width}x{how.height} | {how.steps}, {how.guidance:g} | {cells[0]} | {cells[1]} | {each} |")
        show(lines)
    return lines


def videos(folder: Path, n: int) -> list[str]:
    pipe, shown = wan.load_pipeline(folder), clips(91, n, held_out=True)
    lines = ["| frames | background | colour | motion | first frame | CPU-ms a clip |", "|---|---|---|---|---|---|"]
    for how in CLIP_ROWS:
        clock = Clock.start()
        made = [m for k in range(0, n, 5) for m in wan.generate(pipe, [c.caption for c in shown[k : k + 5]], how)]
        each = clock.ms_each(n)
        verdicts = [judge(m, c) for m, c in zip(made, shown, strict=True)]
        parts = ("background", "colour", "motion", "first_frame")
        cells = " | ".join(f"{np.mean([getattr(v, p) for v in verdicts]):.3f}" for p in parts)
        lines.append(f"| {how.frames} | {cells} | {each} |")
        show(lines)
    return lines


def sessions(folder: Path, n: int) -> list[str]:
    """Chunks of two seconds, each going on from the one before; every chunk is asked for another direction."""
    pipe, shown = wan.load_pipeline(folder), clips(93, n, held_out=True)
    rng = np.random.default_rng(93)
    lines = ["| chunk | background | colour | motion | goes on where the last ended |", "|---|---|---|---|---|"]
    latents = torch.empty(0)
    frames: list[Pixels] = []
    for chunk in range(CHUNKS):
        how = wan.VideoSampling(frames=LAP, seed=1000 * chunk)
        last, shown_before = frames, shown
        if chunk:
            shown = [replace(c, direction=pick(rng, DIRECTIONS)) for c in shown]
        said = [c.caption for c in shown]
        latents = wan.go_on(pipe, said, latents, how) if chunk else wan.begin_with(pipe, said, how)
        frames = wan.seen(pipe, latents)
        verdicts = [judge(m, c) for m, c in zip(frames, shown, strict=True)]
        joins = [
            judge(np.stack([a[-1], b[0]]), c).motion for a, b, c in zip(last, frames, shown_before, strict=bool(chunk))
        ]
        cells = " | ".join(
            f"{np.mean([getattr(v, p) for v in verdicts]):.3f}" for p in ("background", "colour", "motion")
        )
        lines.append(f"| {chunk + 1} | {cells} | {f'{np.mean(joins):.3f}' if chunk else ''} |")
        show(lines)
    return lines


def show(lines: Sequence[str]) -> None:
    """The newest row at once (with its head before the first): a table takes minutes."""
    print("\n".join(lines if len(lines) == 3 else lines[-1:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "which", nargs="*", default=["image", "student", "video", "session"], help="image, student, video, session"
    )
    parser.add_argument("--n", type=int, default=200, help="held-out captions a row")
    parser.add_argument("--weights", type=Path, default=HERE, help="the folder of image/, image_student/ and video/")
    a = parser.parse_args()
    begin(0)
    if "image" in a.which:
        pictures(a.weights / "image", IMAGE_ROWS, a.n)
    if "student" in a.which:
        pictures(a.weights / "image_student", STUDENT_ROWS, a.n)
    if "session" in a.which:
        sessions(a.weights / "video", max(5, a.n // 5))
    if "video" in a.which:
        videos(a.weights / "video", max(5, a.n // 5))


if __name__ == "__main__":
    main()
