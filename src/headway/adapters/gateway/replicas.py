"""What an operator does with replicas: look at them, take one out, bring it back."""

from typing import Final, Literal

from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.tenants import KeyTable, Tenant
from headway.core.errors import RequestError
from headway.core.ids import NodeId
from headway.core.reports import ReplicaFigures, WarmShape
from headway.core.units import ms_from_ns

Verb = Literal["drain", "undrain"]
VERBS: Final[tuple[Verb, ...]] = ("drain", "undrain")


class ReplicaRoutes:
    """`GET /v1/replicas`, `POST /v1/replicas/{id}/drain` and `/undrain`. With an admin key configured, only for it."""

    def __init__(self, serving: Serving, keys: KeyTable) -> None:
        self._serving, self._keys = serving, keys

    def listing(self, tenant: Tenant) -> JsonObject:
        """Every replica with its state. Raises RequestError 403."""
        self._only_admin(tenant)
        return {"object": "list", "data": [shown(figures) for figures in self._serving.stats().replicas]}

    def drain(self, replica: str, verb: Verb, tenant: Tenant) -> JsonObject:
        """Take it out (what runs there ends as it would) or bring it back. Raises RequestError 403 and 404."""
        self._only_admin(tenant)
        known = [figures.replica for figures in self._serving.stats().replicas]
        if replica not in known:
            raise RequestError(
                f"No replica `{replica[:256]}`; there are: {', '.join(known) or 'none'}.",
                status=404,
                code="replica_not_found",
            )
        self._serving.drain(NodeId(replica), verb == "drain")
        return {"id": replica, "drained": verb == "drain"}

    def _only_admin(self, tenant: Tenant) -> None:
        if self._keys.has_admin and not tenant.admin:
            raise RequestError("Only an admin key may look at replicas or drain them.", status=403, code="admin_only")


def shown(figures: ReplicaFigures) -> JsonObject:
    """One replica as JSON; `age_ms` is null while nothing was heard of it."""
    return {
        "id": figures.replica,
        "object": "replica",
        "state": figures.state,
        "models": list(figures.models),
        "incarnation": figures.incarnation,
        "drained": figures.is_drained,
        "health": "up" if figures.is_up else "down",
        "breaker": figures.breaker,
        "in_flight": figures.in_flight,
        "waiting": figures.waiting,
        "running": figures.running,
        "source": figures.source,
        "age_ms": None if figures.age_ns is None else ms_from_ns(figures.age_ns),
        "memory_room_bytes": figures.memory_room_bytes,
        "memory_used_bytes": figures.memory_used_bytes,
        "checkpoint_save_ms": None if figures.save_ns is None else ms_from_ns(figures.save_ns),
        "checkpoint_resume_ms": None if figures.resume_ns is None else ms_from_ns(figures.resume_ns),
        "checkpoint_error": figures.interruption_error,
        "warm": None if figures.warm is None else [_warm(shape) for shape in figures.warm],
        "reason": figures.reason,
    }


def _warm(shape: WarmShape) -> JsonObject:
    """Pictures or videos that have run there, and the most of them together."""
    return {"size": f"{shape.width}x{shape.height}", "frames": shape.frames, "batch": shape.batch}
