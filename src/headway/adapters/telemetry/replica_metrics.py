"""Prometheus families of replicas as a gateway sees them: who may take requests, what garbage collection took, and
how the allocators of their devices came to rest."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily

from headway.core.reports import ReplicaFigures, ReplicaReport
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
    passes = GaugeMetricFamily(
        "headway_replica_settle_passes",
        "Warm-up passes that were repeated until the device's allocator took nothing new; 0: it has no such one.",
        labels=["replica"],
    )
    reserved = GaugeMetricFamily(
        "headway_replica_reserved_bytes", "What that allocator held when it had settled.", labels=["replica"]
    )
    for replica in replicas:
        is_usable = replica.state == "ready" and replica.is_up and replica.breaker == "closed"
        usable.add_metric([replica.replica], int(is_usable))
        if replica.settle_passes is not None:
            passes.add_metric([replica.replica], replica.settle_passes)
        if replica.reserved_bytes is not None:
            reserved.add_metric([replica.replica], replica.reserved_bytes)
        if (known := replica.garbage) is not None:
            pauses.add_metric([replica.replica, "young"], known.young, known.young_ns / NS_PER_S)
            pauses.add_metric([replica.replica, "full"], known.full, known.full_ns / NS_PER_S)
            longest.add_metric([replica.replica], known.longest_ns / NS_PER_S)
    yield from (usable, pauses, longest, passes, reserved)


def step_seconds(reports: Sequence[ReplicaReport]) -> Metric:
    """Return the steps of all replicas, and what they took."""
    family = SummaryMetricFamily("headway_scheduler_step_seconds", "Engine steps and their time.", labels=["replica"])
    for report in reports:
        counters = dict(report.counters)
        if "steps" in counters and "step_ns" in counters:
            family.add_metric([report.replica], counters["steps"], counters["step_ns"] / NS_PER_S)
    return family
