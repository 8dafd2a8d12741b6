"""Writes the Grafana dashboard and the Prometheus alert rules out of the names that /metrics has.

`python -m headway.adapters.telemetry.dashboard` writes both into deploy/grafana. An expression that names a metric that
does not exist is refused here, so that neither can show nothing because a name moved.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from headway.adapters.telemetry.metrics import Metrics, Scrape
from headway.adapters.telemetry.panels import PANELS as PANELS
from headway.adapters.telemetry.panels import Panel as Panel
from headway.adapters.telemetry.session_metrics import SessionMetrics

DASHBOARD_FILE: Final = "headway-dashboard.json"
ALERTS_FILE: Final = "headway-alerts.yml"
FOLDER: Final = Path("deploy/grafana")
_NAME: Final = re.compile(r"\bheadway_[a-z0-9_]+")
_WIDTH, _HEIGHT = 8, 8  # of a panel; Grafana's grid is 24 wide
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Alert(msgspec.Struct, frozen=True):
    """One rule."""

    name: str
    expression: str
    for_: str
    severity: str
    summary: str


ALERTS: Final = (
    Alert(
        "HeadwayErrors",
        'sum(rate(headway_requests_total{outcome=~"engine_lost|internal_error|no_replica"}[5m])) / '
        "sum(rate(headway_requests_total[5m])) > 0.01",
        "5m",
        "critical",
        "More than 1 % of the requests end with an error of ours",
    ),
    Alert(
        "HeadwayNoReplica",
        "absent(headway_kv_blocks_total)",
        "2m",
        "critical",
        "No replica reports: nothing is served",
    ),
    Alert(
        "HeadwaySlowFirstToken",
        'histogram_quantile(0.95, sum by (le) (rate(headway_request_ttft_seconds_bucket{cold="false"}[5m]))) > 2',
        "10m",
        "warning",
        "p95 of the time to first token of hot requests is over 2 s",
    ),
    Alert(
        "HeadwayQueueGrows",
        'histogram_quantile(0.95, sum by (le) (rate(headway_request_queue_seconds_bucket{cold="false"}[5m]))) > 1',
        "10m",
        "warning",
        "p95 of the time in queues is over 1 s: more replicas are needed",
    ),
    Alert(
        "HeadwayRejects",
        'sum(rate(headway_admission_total{verdict="reject"}[5m])) / sum(rate(headway_admission_total[5m])) > 0.05',
        "10m",
        "warning",
        "More than 5 % of the requests are refused at admission",
    ),
    Alert(
        "HeadwayKvFull",
        "headway_kv_blocks_used / headway_kv_blocks_total > 0.95 and on (replica) "
        "rate(headway_preemptions_total[5m]) > 0",
        "10m",
        "warning",
        "A replica has no KV blocks left and preempts: raise kv_blocks or lower max_seqs",
    ),
    Alert(
        "HeadwayEvidenceLost",
        "sum by (sink) (rate(headway_evidence_lost_total[5m])) > 0",
        "10m",
        "warning",
        "A collector or a disk does not take the evidence; requests are served all the same",
    ),
)


def known_names() -> frozenset[str]:
    """Return every name that a sample of /metrics can have."""
    names: set[str] = set()
    registry = Metrics(Scrape).registry
    SessionMetrics(registry, int)
    for family in registry.collect():
        suffixes = {
            "counter": ("_total",),
            "histogram": ("_bucket", "_sum", "_count"),
            "summary": ("_sum", "_count"),
        }.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return frozenset(names)


def expressions() -> Iterator[str]:
    """Every PromQL expression of panels and alerts."""
    for panel in PANELS:
        yield from (query for _, query in panel.queries)
    yield from (alert.expression for alert in ALERTS)


def names_in(expression: str) -> list[str]:
    """Return the metrics that an expression names."""
    return _NAME.findall(expression)


def check() -> None:
    """Raise ValueError for an expression whose metric does not exist."""
    known = known_names()
    for expression in expressions():
        unknown = [name for name in names_in(expression) if name not in known]
        if unknown:
            raise ValueError(f"{expression}: /metrics has no {', '.join(unknown)}")


def dashboard_json() -> str:
    """Return the dashboard as Grafana imports it."""
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    page = {
        "uid": "headway",
        "title": "Headway",
        "tags": ["headway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [datasource]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return msgspec.json.format(msgspec.json.encode(page), indent=2).decode() + "\n"


def _panel(number: int, panel: Panel) -> dict[str, object]:
    row, column = divmod(number, 24 // _WIDTH)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def alerts_yaml() -> str:
    """Return the rules file of Prometheus. Texts are JSON strings, which are YAML too."""

    def quoted(text: str) -> str:
        return msgspec.json.encode(text).decode()

    lines = ["# Generated: python -m headway.adapters.telemetry.dashboard"]
    lines += ["groups:", "  - name: headway", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {quoted(alert.expression)}",
            f"        for: {alert.for_}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {quoted(alert.summary)}",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files into the folder given, else into deploy/grafana."""
    check()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DASHBOARD_FILE).write_text(dashboard_json(), encoding="utf-8")
    (folder / ALERTS_FILE).write_text(alerts_yaml(), encoding="utf-8")


if __name__ == "__main__":
    main()
