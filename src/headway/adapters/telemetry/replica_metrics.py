"""Prometheus families of replicas as a gateway sees them: who may take requests, and what garbage collection took."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily

from headway.core.reports import ReplicaFigures
from headway.core.units import NS_PER_S


def replica_metrics(replicas: Sequence[ReplicaFigures]) -> Iterator[Metric]:
    """Yield the families."""
    usable = GaugeMetricFamily(
        "headway_replica_usable", "1 while state, health checks and breaker let it take requests.", labels=["replica"]
    )
    pauses = SummaryMetricFamily(
        "headway_gc_pause_seconds",
        "Pauses of a replica's process by its garbage collector, since it was ready.",
        labels=["replica", "generation"],
    )
    longest = GaugeMetricFamily("headway_gc_pause_longest_seconds", "The longest of them.", labels=["replica"])
    for replica in replicas:
        is_usable = replica.state == "ready" and replica.is_up and replica.breaker == "closed"
        usable.add_metric([replica.replica], int(is_usable))
        if (known := replica.garbage) is not None:
            pauses.add_metric([replica.replica, "young"], known.young, known.young_ns / NS_PER_S)
            pauses.add_metric([replica.replica, "full"], known.full, known.full_ns / NS_PER_S)
            longest.add_metric([replica.replica], known.longest_ns / NS_PER_S)
    yield from (usable, pauses, longest)
