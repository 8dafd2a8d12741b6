"""Prometheus families of pools: the scaling signals (SPEC A12), and moves between shape pools (F5)."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headway.core.reports import PoolFigures, ShapeMoveFigures

_WISHES: Final = {"grow": 1, "hold": 0, "shrink": -1}


def pool_metrics(pools: Sequence[PoolFigures]) -> Iterator[Metric]:
    """Yield the families."""
    labels = ["model", "pool"]
    families = (
        GaugeMetricFamily("headway_pool_replicas", "Replicas that serve.", labels=labels),
        GaugeMetricFamily("headway_pool_replicas_wanted", "Replicas that the pool should have.", labels=labels),
        GaugeMetricFamily("headway_pool_expected_wait_seconds", "Wait of a request that comes now.", labels=labels),
        GaugeMetricFamily(
            "headway_pool_predicted_wait_seconds", "The same when a replica that starts now would serve.", labels=labels
        ),
        GaugeMetricFamily(
            "headway_pool_wish",
            "1: grow to the wanted replicas, -1: shrink to them, 0: no wish, leave alone what starts.",
            labels=labels,
        ),
    )
    for figures in pools:
        values = (figures.replicas, figures.wanted, figures.wait_s, figures.predicted_s, _WISHES[figures.wish])
        for family, value in zip(families, values, strict=True):
            family.add_metric([figures.model, figures.pool], value)
    yield from families


def shape_moves(moves: Sequence[ShapeMoveFigures]) -> Metric:
    """The family of replicas that changed their shape pool (SPEC F5)."""
    family = CounterMetricFamily(
        "headway_shape_moves", "Replicas that changed their shape pool, or could not.", labels=["model", "outcome"]
    )
    for figures in moves:
        family.add_metric([figures.model, figures.outcome], figures.count)
    return family
