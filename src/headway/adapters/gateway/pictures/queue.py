"""What an operator does with the queue of jobs: look at it, pause it, let it go on (ComfyUI#1032)."""

from typing import Literal

import msgspec

from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prepare import LOADING_RETRY_MS
from headway.adapters.gateway.queue_ports import Queue, QueueView, Running
from headway.adapters.gateway.schema import Name
from headway.adapters.gateway.tenants import KeyTable, Tenant
from headway.core.errors import CapacityError, RequestError


class PauseBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/queue/pause`. Without `model` every model's queue is paused.

    `running`: jobs that run are finished; or stop once they are saved at the next step; or stop at the next step.
    """

    model: Name | None = None
    running: Literal["finish", "checkpoint", "stop"] = "finish"


class ResumeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/queue/resume`. Without `model` every queue goes on."""

    model: Name | None = None


class QueueRoutes:
    """`GET /v1/queue`, `POST /v1/queue/pause` and `/resume`. With an admin key configured, only for it."""

    def __init__(self, serving: Serving, keys: KeyTable, queue: Queue) -> None:
        self._serving, self._keys, self._queue = serving, keys, queue

    async def view(self, tenant: Tenant) -> JsonObject:
        """Raises RequestError 403."""
        self._only_admin(tenant)
        return shown(await self._queue.view())

    async def pause(self, body: PauseBody, tenant: Tenant) -> JsonObject:
        """Claim nothing more. Raises RequestError 403, and 404 for a model that nobody knows."""
        self._only_admin(tenant)
        if body.model is not None:
            await self._must_know(body.model)
        running: Running = body.running
        return shown(await self._queue.hold(body.model, running))

    async def resume(self, body: ResumeBody, tenant: Tenant) -> JsonObject:
        """Raises RequestError 403, 404 for a model that nobody knows, and 409 for one model while all are paused."""
        self._only_admin(tenant)
        if body.model is not None:
            await self._must_know(body.model)
        return shown(await self._queue.release(body.model))

    async def _must_know(self, model: str) -> None:
        """It is served, or jobs of it wait, or it is paused. Raises CapacityError while nobody can tell."""
        found = await self._queue.view()
        cards = self._serving.models()
        known = [card.id for card in cards if card.pictures is not None]
        others = [line.model for line in found.lines] + [hold.model for hold in found.holds]
        others += [model.id for model in self._serving.starting()]
        known += [name for name in dict.fromkeys(others) if name not in known]
        if model not in known:
            if not cards:
                raise CapacityError(
                    self._serving.ready()[1], status=503, code="no_replica", retry_after_ms=LOADING_RETRY_MS
                )
            raise RequestError(
                f"No model `{model[:256]}` has jobs here; there are: {', '.join(known) or 'none'}.",
                status=404,
                code="model_not_found",
                param="model",
            )

    def _only_admin(self, tenant: Tenant) -> None:
        if self._keys.has_admin and not tenant.admin:
            message = "Only an admin key may look at the queue of all tenants, pause it or let it go on."
            raise RequestError(message, status=403, code="admin_only")


def shown(view: QueueView) -> JsonObject:
    """The queue as JSON: one entry per model that has jobs or is paused; model null stands for all."""
    holds = {hold.model: hold for hold in view.holds}
    every = holds.pop("*", None)
    lines = {line.model: line for line in view.lines}
    data: list[JsonObject] = []
    for model in sorted({*holds, *lines}):
        hold, line = holds.get(model, every), lines.get(model)
        data.append(
            {
                "model": model,
                "waiting": 0 if line is None else line.waiting,
                "running": 0 if line is None else line.running,
                "paused": hold is not None,
                "paused_at": None if hold is None else hold.since,
                "running_jobs": None if hold is None else hold.running,
            }
        )
    whole = {"paused": every is not None, "paused_at": None if every is None else every.since}
    return {"object": "queue", **whole, "running_jobs": None if every is None else every.running, "data": data}
