"""The pages about runs name every key that a run's files have."""

import re
from pathlib import Path

import pytest

from headway.bench.ends import CLIENT_COLUMNS
from headway.bench.results import DECISIONS, REPORT, REQUESTS, SCENARIO, SERIES, SUMMARY
from headway.bench.run_summary import RunSummary
from headway.bench.series import Point, PoolPoint

DOCS = Path(__file__).resolve().parents[3] / "docs"


def named(page: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", (DOCS / page).read_text()))


def test_every_key_of_the_summary_is_documented() -> None:
    assert set(RunSummary.__struct_fields__) - named("simulator.md") == set()


@pytest.mark.parametrize("names", [CLIENT_COLUMNS, Point.__struct_fields__, PoolPoint.__struct_fields__])
def test_every_field_of_requests_and_series_is_documented(names: list[str]) -> None:
    assert set(names) - named("runs.md") == set()


def test_every_file_is_documented() -> None:
    assert {SUMMARY, SCENARIO, DECISIONS, SERIES, REPORT, *REQUESTS.values()} - named("runs.md") == set()
