import msgspec
import pytest

from headway.bench.metrics import condition
from headway.bench.results import Tally
from headway.bench.run_summary import Closing
from headway.bench.summary import Quantiles
from headway.bench.sweep import Result
from headway.bench.sweep_report import sweep_page
from headway.bench.sweep_rows import Spread, check_metrics, found_row, ranked, rows_of, spread_text, table_text
from headway.bench.sweep_search import Found, Search
from headway.core.errors import ConfigError

SUMMARY = Tally().summary(Closing(1.0))
NAMES = ("goodput_per_s", "ttft_ms.p99")


def result(replicas: int, router: str, seed: int, goodput: float, p99: float | None = 10.0) -> Result:
    times = Quantiles(0) if p99 is None else Quantiles(1, p99, p99, p99, p99, p99)
    summary = msgspec.structs.replace(SUMMARY, goodput_per_s=goodput, ttft_ms=times)
    return Result(f"{replicas}{router}{seed}", {"replicas": replicas, "router": router, "seed": seed}, summary)


RESULTS = [
    result(1, "a", 0, 4.0, 30.0), result(1, "a", 1, 6.0, 20.0), result(2, "a", 0, 9.0), result(2, "a", 1, 9.0),
    result(1, "b<c", 0, 5.5), result(1, "b<c", 1, 5.5), result(2, "b<c", 0, 8.0, None), result(2, "b<c", 1, 8.0),
]  # fmt: skip


def test_seeds_of_a_combination_are_one_row() -> None:
    rows = rows_of(RESULTS, NAMES)
    assert [(row.changes["replicas"], row.changes["router"], row.seeds) for row in rows] == [
        (1, "a", 2), (2, "a", 2), (1, "b<c", 2), (2, "b<c", 2),
    ]  # fmt: skip
    assert rows[0].metrics["goodput_per_s"] == Spread(5.0, 4.0, 6.0)


def test_what_one_seed_did_not_measure_is_no_mean() -> None:
    assert rows_of(RESULTS, NAMES)[3].metrics["ttft_ms.p99"] is None


def test_rows_are_ranked_by_what_is_better() -> None:
    rows = rows_of(RESULTS, NAMES)
    by_goodput = [(row.changes["replicas"], row.changes["router"]) for row in ranked(rows, "goodput_per_s")]
    assert by_goodput == [(2, "a"), (2, "b<c"), (1, "b<c"), (1, "a")]
    by_time = [(row.changes["replicas"], row.changes["router"]) for row in ranked(rows, "ttft_ms.p99")]
    assert by_time == [(2, "a"), (1, "b<c"), (1, "a"), (2, "b<c")]


def test_the_range_over_seeds_is_shown_where_they_differ() -> None:
    assert spread_text(Spread(5.0, 4.0, 6.0)) == "5 (4..6)"
    assert spread_text(Spread(5.0, 5.0, 5.0)) == "5"
    assert spread_text(None) == "-"


def test_a_combination_that_cannot_run_is_in_the_table_with_its_reason() -> None:
    rows = rows_of([*RESULTS, Result("x", {"replicas": 9, "router": "a", "seed": 0}, None, "does not fit")], NAMES)
    text = table_text(ranked(rows, "goodput_per_s"), NAMES)
    assert text.splitlines()[0].split() == ["replicas", "router", *NAMES]
    assert "no number: replicas=9, router=a: does not fit" in text


def test_what_a_search_found_is_a_metric_of_its_row_and_ranks_it() -> None:
    search = Search("replicas", "min", condition("attainment>=0.9"), 1, 8, is_whole=True)
    few, many, none = (
        found_row(Found({"router": name}, value, False, results, 3), search, NAMES)
        for name, value, results in (
            ("a", 2, [result(2, "a", 0, 4.0)]),
            ("b", 5, [result(5, "b", 0, 4.0)]),
            ("c", None, []),
        )
    )
    assert few.metrics["replicas"] == Spread(2, 2, 2)
    assert few.changes == {"router": "a"}
    assert [row.changes["router"] for row in ranked([none, many, few], "replicas", is_less=True)] == ["a", "b", "c"]
    assert none.error == "attainment>=0.9 holds nowhere from 1 to 8"


def test_a_metric_that_no_run_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no number 'speed'"):
        check_metrics(RESULTS, ["speed"])
    with pytest.raises(ConfigError, match="no cell of the sweep can run: does not fit"):
        check_metrics([Result("x", {}, None, "does not fit")], NAMES)


def test_the_page_has_lines_and_a_heat_map_and_needs_nothing_beside_it() -> None:
    page = sweep_page("s", ranked(rows_of(RESULTS, NAMES), "goodput_per_s"), NAMES)
    assert page.count("<svg") == 4  # lines and a map for each metric
    assert "b&lt;c" in page
    assert "b<c" not in page
    assert "<script" not in page


def test_a_sweep_over_words_has_bars() -> None:
    rows = rows_of([result(1, "a", 0, 4.0), result(1, "b", 0, 5.0)], NAMES)
    plain = [msgspec.structs.replace(row, changes={"router": row.changes["router"]}) for row in rows]
    assert sweep_page("s", plain, NAMES).count("<svg") == 2
