import json
import sys
from pathlib import Path

import pytest

from headway.adapters.telemetry import dashboard
from headway.adapters.telemetry.metrics import Metrics, Scrape

FOLDER = Path(__file__).parents[4] / dashboard.FOLDER
STALE = "run `python -m headway.adapters.telemetry.dashboard`"


def test_the_files_in_the_tree_are_current() -> None:
    # SPEC M2
    assert (FOLDER / dashboard.DASHBOARD_FILE).read_text(encoding="utf-8") == dashboard.dashboard_json(), STALE
    assert (FOLDER / dashboard.ALERTS_FILE).read_text(encoding="utf-8") == dashboard.alerts_yaml(), STALE


def test_every_expression_of_the_files_uses_metrics_that_exist() -> None:
    # SPEC M2
    page = json.loads((FOLDER / dashboard.DASHBOARD_FILE).read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    rules = (FOLDER / dashboard.ALERTS_FILE).read_text(encoding="utf-8").splitlines()
    watched = [json.loads(line.split("expr: ")[1]) for line in rules if "expr: " in line]
    assert len(watched) == len(dashboard.ALERTS)
    for expression in (*shown, *watched):
        found = dashboard.names_in(expression)
        assert found, expression
        assert set(found) <= dashboard.known_names(), expression


def test_the_known_names_are_those_that_prometheus_scrapes() -> None:
    text = Metrics(Scrape).render().decode()
    scraped = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {name for name in scraped if name.startswith("headway_")} <= dashboard.known_names()
    assert "headway_request_ttft_seconds_bucket" in dashboard.known_names()
    assert "headway_requests" not in dashboard.known_names()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for expression in dashboard.expressions() for name in dashboard.names_in(expression)}
    stems = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown}
    known = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in dashboard.known_names()
    }
    assert known - stems == set()


def test_a_name_that_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = dashboard.Panel("x", "s", (("x", "rate(headway_gone_total[5m])"),))
    monkeypatch.setattr(dashboard, "PANELS", (panel,))
    with pytest.raises(ValueError, match="headway_gone_total"):
        dashboard.check()


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads(dashboard.dashboard_json())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_generator_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dashboard", str(tmp_path / "out")])
    dashboard.main()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        (dashboard.ALERTS_FILE, dashboard.DASHBOARD_FILE)
    )
