from itertools import pairwise
from xml.etree import ElementTree

import pytest

from headway.bench.svg import Amount, Axes, Bar, Series, amounts, bars, lines, nice_step

AXES = Axes("a < b", "load", "goodput", ((0.4, "0.4"), (1.0, "1")))


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def words(picture: str) -> list[str]:
    return [item.text or "" for item in parsed(picture).iter() if item.tag.endswith("text")]


def test_a_plot_is_well_formed_and_names_its_lines() -> None:
    shown = words(lines(AXES, [Series("ours & co", ((0.4, 1.0), (1.0, 3.0)), "#111111", True)]))
    assert "a < b" in shown
    assert "ours & co" in shown


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    series = [Series(f"policy {n}", ((0.4, 1.0), (1.0, 5.0)), "#111111") for n in range(15)]
    places = sorted(
        float(item.attrib["y"])
        for item in parsed(lines(AXES, series)).iter()
        if item.tag.endswith("text") and (item.text or "").startswith("policy")
    )
    assert len(places) == 15
    assert min(b - a for a, b in pairwise(places)) > 9
    assert 0 < places[0] < places[-1] < 250


def test_a_bar_is_as_long_as_its_share() -> None:
    picture = parsed(bars("t", [Bar("a", 1.0, 0.0, "#1"), Bar("b", 0.25, 0.0, "#1")]))
    long, short = [float(item.attrib["width"]) for item in picture.iter() if item.attrib.get("fill") == "#1"]
    assert long == pytest.approx(4 * short)


@pytest.mark.parametrize(("span", "step"), [(10, 2), (1, 0.2), (47, 10), (0.3, 0.1), (230, 50)])
def test_steps_of_an_axis_are_round(span: float, step: float) -> None:
    assert nice_step(span) == pytest.approx(step)


def test_nothing_is_fetched() -> None:
    picture = lines(AXES, [Series("a", ((0.4, 1.0),), "#111111")])
    assert "href" not in picture
    assert "<script" not in picture


def test_amounts_are_as_long_as_they_are_large_and_say_what_they_are() -> None:
    picture, width, height = amounts(
        "t < u", [Amount("one", 2.0, "2 s", "#111111"), Amount("two", 1.0, "1 s", "#111111")]
    )
    long = [float(item.get("width", "")) for item in parsed(picture).iter() if item.get("height") == "12"]
    assert long[0] == pytest.approx(2 * long[1], rel=0.01)
    assert parsed(picture).get("viewBox") == f"0 0 {width} {height}"
    assert {"t < u", "one", "2 s"} <= set(words(picture))
