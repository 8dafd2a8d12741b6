"""What /metrics reads of the system behind the gateway."""

from headway.adapters.gateway.ports import Serving
from headway.adapters.telemetry.metrics import Scrape


def scrape(serving: Serving) -> Scrape:
    """Live numbers, once per scrape."""
    stats = serving.stats()
    return Scrape(
        reports=stats.reports,
        waiting=stats.waiting,
        admissions=stats.admissions,
        exports_lost=stats.exports_lost,
        prefixes=stats.prefixes,
        predictions=stats.predictions,
        pools=stats.pools,
        shape_moves=stats.shape_moves,
        recoveries=stats.recoveries,
        replicas=stats.replicas,
        jobs=stats.jobs,
        held=stats.held,
        webhooks=stats.webhooks,
    )
