"""Prints how much of held-out captions comes true, by the pixel oracle, through unmodified diffusers pipelines.

`python -m models.tiny.evaluate [image] [student] [video] [--n N]` reads the committed weights beside this file.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import wan
from .clips import FPS, clips, judge
from .distill import STEPS
from .flux import Sampling, generate, load_pipeline
from .oracle import table
from .scenes import scenes
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


def show(lines: Sequence[str]) -> None:
    """The newest row at once (with its head before the first): a table takes minutes."""
    print("\n".join(lines if len(lines) == 3 else lines[-1:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", default=["image", "student", "video"], help="image, student, video")
    parser.add_argument("--n", type=int, default=200, help="held-out captions a row")
    parser.add_argument("--weights", type=Path, default=HERE, help="the folder of image/, image_student/ and video/")
    a = parser.parse_args()
    begin(0)
    if "image" in a.which:
        pictures(a.weights / "image", IMAGE_ROWS, a.n)
    if "student" in a.which:
        pictures(a.weights / "image_student", STUDENT_ROWS, a.n)
    if "video" in a.which:
        videos(a.weights / "video", max(5, a.n // 5))


if __name__ == "__main__":
    main()
