import math
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.charts import HEIGHT, WIDTH, Line, Mark, Plot, cdf, draw, duration

PLOT = Plot("Load", "time, s", "requests/s")


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=500))
def test_a_distribution_ascends_to_all_of_the_values(values: list[float]) -> None:
    points = cdf(np.array(values))
    assert points[-1] == (max(values), 1.0)
    for (low, before), (high, after) in pairwise(points):
        assert low < high
        assert before < after
    for value, share in points:
        assert share == sum(other <= value for other in values) / len(values)


def test_what_was_not_measured_is_in_no_distribution() -> None:
    assert cdf(np.array([math.nan, 4.0])) == ((4.0, 1.0),)
    assert cdf(np.array([math.nan])) == ()


def test_a_plot_is_one_well_formed_picture_within_its_frame() -> None:
    lines = [Line("a <b>", ((0.0, 1.0), (5.0, 9.0)), "#123456", is_filled=True), Line("none", (), "#000000")]
    plot = Plot("T & x", "x", "y", marks=(Mark(3.0, "limit"),))
    root = ElementTree.fromstring(draw(plot, lines))
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert "a <b>" in texts
    assert "limit" in texts
    assert "none" not in texts
    for node in root.iter():
        if node.tag.endswith("polyline"):
            for pair in node.attrib["points"].split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= WIDTH
                assert 0 <= y <= HEIGHT


def test_every_line_is_named_however_many_there_are() -> None:
    names = [f"system {number} of a long name" for number in range(9)]
    root = ElementTree.fromstring(draw(PLOT, [Line(name, ((0.0, 1.0), (1.0, 2.0)), "#000") for name in names]))
    shown = {text.text: float(text.get("y", "0")) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(names) <= set(shown)
    moved = root.find("{http://www.w3.org/2000/svg}g")
    assert moved is not None
    down = float(moved.get("transform", "").removeprefix("translate(0 ").removesuffix(")"))
    assert max(shown[name] for name in names) < 44 + down < float(root.get("height", "0")) == HEIGHT + down


def test_a_plot_without_points_says_so() -> None:
    assert "nothing was measured" in draw(PLOT, [Line("a", (), "#000000")])


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [0.0, 1e9], [1.0, 1.0000001]])
def test_a_logarithmic_axis_takes_any_times(values: list[float]) -> None:
    plot = Plot("T", "time", "share", is_share=True, is_log=True, is_duration=True)
    assert "nan" not in draw(plot, [Line("a", cdf(np.array(values)), "#000000")])


@pytest.mark.parametrize(
    ("ms", "shown"), [(0.0005, "0.5 us"), (12.0, "12 ms"), (1500.0, "1.5 s"), (180e3, "3 min"), (7200e3, "2 h")]
)
def test_times_are_shown_in_their_own_unit(ms: float, shown: str) -> None:
    assert duration(ms) == shown
