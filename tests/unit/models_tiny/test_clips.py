"""Clips of moving shapes: their laps close, and the oracle tells motion, colour and background."""

from dataclasses import replace

import numpy as np
from models.tiny.clips import LAP, Clip, clips, frame, judge, lap
from models.tiny.oracle import Pixels, as_pixels

CLIP = Clip("circle", "red", "large", "right", "black", 0.9, 0.4)


def frames(clip: Clip) -> Pixels:
    return np.stack([as_pixels(f).transpose(1, 2, 0) for f in lap(clip)])


def test_a_shape_is_back_after_a_lap() -> None:
    assert np.allclose(frame(CLIP, 0), frame(CLIP, LAP), atol=1e-4)


def test_true_clips_are_right() -> None:
    for clip in clips(3, 40, held_out=True):
        shown = judge(frames(clip), clip)
        assert shown.background
        assert shown.colour
        assert shown.motion
        assert shown.first_frame


def test_another_direction_is_wrong_motion_only() -> None:
    for other in ("left", "up", "down", "still"):
        shown = judge(frames(CLIP), replace(CLIP, direction=other))
        assert shown.colour
        assert not shown.motion


def test_a_clip_that_stands_still_is_no_motion() -> None:
    assert not judge(np.repeat(frames(CLIP)[:1], LAP, 0), CLIP).motion


def test_another_colour_is_wrong() -> None:
    assert not judge(frames(CLIP), replace(CLIP, colour="blue")).colour


def test_captions_leave_out_what_is_silent() -> None:
    assert CLIP.caption == "a large red circle moving right on a black background"
    assert replace(CLIP, silent=frozenset({"size"})).caption == "a red circle moving right on a black background"
    assert replace(CLIP, direction="still", silent=frozenset({"size", "background"})).caption == "a red circle"
