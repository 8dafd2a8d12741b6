"""One replica as a front sees it, put together for operators and metrics."""

from headway.core.reports import ReplicaFigures
from headway.core.units import Ns
from headway.sched.fleet.guard import Guard
from headway.sched.router.fleet_view import Replica


def figures_of(replica: Replica, guard: Guard, at_ns: Ns) -> ReplicaFigures:
    """Return what is known of it."""
    report = replica.report
    memory, cost = (None, None) if report is None else (report.denoise_memory, report.denoise_cost)
    used = [view.used for view in report.accounts if view.name == f"device/{replica.id}/bytes"] if report else []
    return ReplicaFigures(
        replica=replica.id,
        state="loading" if report is None else "draining" if report.draining else "ready",
        models=() if report is None else (report.model, *report.models),
        incarnation=replica.incarnation,
        is_up=guard.health.is_up(replica.id),
        breaker=guard.breakers.state(replica.id),
        in_flight=replica.in_flight,
        waiting=0 if report is None else report.waiting,
        running=0 if report is None else report.running,
        source=replica.source,
        age_ns=None if report is None else at_ns - replica.heard_ns,
        memory_room_bytes=None if memory is None else memory.room,
        memory_used_bytes=used[0] if used and memory is not None else None,
        warm=None if report is None else report.warm,
        preparing=() if report is None else report.preparing,
        unprepared=() if report is None else report.unprepared,
        save_ns=_told(cost.save_ns) if cost is not None else None,
        resume_ns=_told(cost.resume_ns) if cost is not None else None,
        interruption_error=cost.interruption_error if cost is not None else None,
    )


def _told(measured_ns: float) -> Ns | None:
    return round(measured_ns) if measured_ns else None
