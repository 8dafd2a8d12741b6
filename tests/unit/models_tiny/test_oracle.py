"""The pixel oracle finds a true picture right and every single falsehood wrong."""

from dataclasses import replace

import numpy as np
import pytest
from models.tiny.oracle import drawn, judge, table
from models.tiny.scenes import Scene, Thing, is_held_out, scenes

HELD_OUT = scenes(5, 30, held_out=True)
PAIR = Scene(
    "a large red circle above a small blue square on a white background",
    (Thing("circle", "red", "large", 0.5, 0.26), Thing("square", "blue", "small", 0.5, 0.74)),
    "white",
)


@pytest.mark.parametrize(("width", "height"), [(64, 64), (96, 64), (64, 96), (128, 128)])
def test_true_pictures_are_right(width: int, height: int) -> None:
    assert all(judge(drawn(s, width, height), s).right for s in HELD_OUT)


@pytest.mark.parametrize(
    ("change", "part"),
    [({"shape": "ring"}, "shape"), ({"colour": "green"}, "colour"), ({"size": "small"}, "size")],
)
def test_one_wrong_word_is_one_wrong_part(change: dict[str, str], part: str) -> None:
    false = replace(PAIR, things=(replace(PAIR.things[0], **change), PAIR.things[1]))
    first, second = judge(drawn(false), PAIR).things
    assert [p for p in ("colour", "shape", "size") if not getattr(first, p)] == [part]
    assert second.colour
    assert second.shape
    assert second.size


def test_swapped_places_are_wrong() -> None:
    a, b = PAIR.things
    swapped = replace(PAIR, things=(replace(a, y=b.y), replace(b, y=a.y)))
    assert not any(t.colour for t in judge(drawn(swapped), PAIR).things)


def test_a_wrong_background_is_wrong() -> None:
    assert not judge(drawn(replace(PAIR, background="gray")), PAIR).background


def test_an_empty_picture_shows_nothing() -> None:
    blank = np.full((64, 64, 3), 245, np.uint8)
    assert judge(blank, PAIR).background
    assert not any(t.colour or t.shape or t.size for t in judge(blank, PAIR).things)


def test_the_table_counts_by_the_number_of_objects() -> None:
    wrong = [drawn(replace(PAIR, background="gray")), drawn(PAIR)]
    assert table(wrong, [PAIR, PAIR])["2"]["right"] == 0.5


def test_no_training_scene_has_a_held_out_caption() -> None:
    trained = {s.caption for s in scenes(1000, 3000)}
    assert not any(is_held_out(c) for c in trained)
    assert not trained & {s.caption for s in HELD_OUT}
