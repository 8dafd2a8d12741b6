from itertools import pairwise

import numpy as np
import pytest
from tests.unit.bench.ended import end, ms, simulated

from headway.bench.columns import Columns, SpanName
from headway.bench.ends import RequestEnd, Tokens, table_of


def columns(*ends: RequestEnd) -> Columns:
    found = Columns()
    for item in ends:
        found.extend(table_of([item], Tokens([item.outcome])))
    return found


PLACES: tuple[SpanName, ...] = ("front", "engine", "run")


def test_where_a_request_stood_is_cut_from_its_segments() -> None:
    found = columns(end("req-0", 100, 10, 30))
    spans = [[float(edge[0]) for edge in found.span(name)] for name in PLACES]
    assert spans == [[ms(100), ms(101)], [ms(101), ms(102)], [ms(102), ms(130)]]


def test_a_refused_request_stood_at_the_front_only() -> None:
    found = columns(end("req-0", 100))
    assert [float(edge[0]) for edge in found.span("front")] == [ms(100), ms(101)]
    assert np.isnan(found.span("engine")[0][0])
    assert np.isnan(found.span("run")[1][0])


def test_spans_of_a_simulated_fleet_follow_each_other_and_end_in_time() -> None:
    _, ends = simulated()
    found = columns(*ends)
    edges = [edge for name in PLACES for edge in found.span(name)]
    for earlier, later in pairwise(edges):
        assert (earlier <= later + 1000).all()  # segments are kept to a ten-millionth: 1 us of 10 s
    assert (edges[-1] <= found.floats("ended_ns") + 1000).all()


def test_names_keep_their_code_over_tables() -> None:
    found = columns(end("req-0", 0, 1, tenant="b"), end("req-1", 0, 1, tenant="a"), end("req-2", 0, 1, tenant="b"))
    known = found.names("tenant")
    assert list(known) == ["a", "b"]
    assert found.codes("tenant").tolist() == [known["b"], known["a"], known["b"]]


def test_a_claim_that_does_not_apply_does_not_hold() -> None:
    found = columns(end("req-0", 0, 1))
    assert found.claim("met").tolist() == [True]
    assert (found.claim("met_ttft").tolist(), found.applies("met_ttft").tolist()) == ([False], [False])


def test_no_requests_are_empty_columns() -> None:
    assert Columns().floats("sent_ns").tolist() == pytest.approx([])
    assert Columns().completed.tolist() == []
