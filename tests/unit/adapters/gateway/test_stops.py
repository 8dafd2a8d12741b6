from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.adapters.gateway.stops import StopCutter

TEXTS = st.text(alphabet="abc☃", max_size=30)
STOPS = st.lists(st.text(alphabet="abc☃", min_size=1, max_size=5), min_size=1, max_size=4)


def naive_end(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The first character after which some stop is complete, and the longest such stop."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


def pieces(text: str, cuts: list[int]) -> list[str]:
    points = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(points)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=8), st.booleans())
@settings(deadline=None)
def test_equals_a_search_over_the_whole_text_however_it_is_split(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    # SPEC B5
    cutter = StopCutter(stops, include=include)
    got = "".join(cutter.feed(piece) for piece in pieces(text, cuts)) + cutter.flush()
    match = naive_end(text, stops)
    if match is None:
        assert (got, cutter.found) == (text, None)
    else:
        end, stop = match
        assert got == text[: end if include else end - len(stop)]
        assert cutter.found == stop


@given(TEXTS, STOPS)
@settings(deadline=None)
def test_holds_back_exactly_the_longest_end_that_may_begin_a_stop(text: str, stops: list[str]) -> None:
    cutter = StopCutter(stops)
    out = ""
    for count, character in enumerate(text, start=1):
        out += cutter.feed(character)
        if cutter.found is not None:
            break
        seen = text[:count]
        held = max((k for s in stops for k in range(len(s)) if seen.endswith(s[:k])), default=0)
        assert out == seen[: count - held]


def test_a_stop_across_pieces_never_leaks() -> None:
    cutter = StopCutter(["\n\nUser:"])
    assert [cutter.feed(piece) for piece in ("fine.\n", "\nUs", "er: hi")] == ["fine.", "", ""]
    assert cutter.found == "\n\nUser:"


def test_a_broken_off_match_comes_out() -> None:
    cutter = StopCutter(["abcd"])
    assert cutter.feed("xabc") + cutter.feed("e") == "xabce"


def test_of_stops_that_end_together_the_longest_is_cut() -> None:
    cutter = StopCutter(["c", "abc"])
    assert cutter.feed("xabc") == "x"


def test_nothing_comes_after_a_stop() -> None:
    cutter = StopCutter(["a"])
    assert [cutter.feed("ba"), cutter.feed("more"), cutter.flush()] == ["b", "", ""]
