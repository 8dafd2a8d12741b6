"""What an operator does with replicas: look at them, take one out, bring it back, have sizes warmed."""

from typing import Annotated, Final, Literal

import msgspec

from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.pictures.schema import Length
from headway.adapters.gateway.pictures.sizes import frames_of, pixels_of, seconds_of
from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.ports import PictureCard, Serving
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.tenants import KeyTable, Tenant
from headway.core.errors import CapacityError, RequestError
from headway.core.reports import PreparationFailure, ReplicaFigures, ShapePreparation, WarmShape
from headway.core.request import DenoiseShape
from headway.core.units import Ns, ms_from_ns

Verb = Literal["drain", "undrain"]
VERBS: Final[tuple[Verb, ...]] = ("drain", "undrain")


SHAPES_MAX: Final = 64  # of one call, and that a replica has to prepare


class WarmBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/replicas/{id}/warm`. `seconds`: lengths of a video; all that its model makes where left out."""

    sizes: tuple[str, ...]
    seconds: Annotated[tuple[Length, ...], msgspec.Meta(max_length=SHAPES_MAX)] = ()


class ReplicaRoutes:
    """`GET /v1/replicas`, `POST /v1/replicas/{id}/drain`, `undrain` and `warm`. With an admin key configured, only for
    it."""

    def __init__(self, serving: Serving, keys: KeyTable) -> None:
        self._serving, self._keys = serving, keys

    def listing(self, tenant: Tenant) -> JsonObject:
        """Every replica with its state. Raises RequestError 403."""
        self._only_admin(tenant)
        now_ns = self._serving.now_ns()
        return {"object": "list", "data": [shown(figures, now_ns) for figures in self._serving.stats().replicas]}

    def drain(self, replica: str, verb: Verb, tenant: Tenant) -> JsonObject:
        """Take it out (what runs there ends as it would) or bring it back. Raises RequestError 403 and 404."""
        self._only_admin(tenant)
        self._serving.drain(self._found(replica).replica, verb == "drain")
        return {"id": replica, "drained": verb == "drain"}

    def warm(self, replica: str, raw: bytes, tenant: Tenant) -> JsonObject:
        """Have it run sizes while it has time, and say which. Raises RequestError 400, 403 and 404, CapacityError
        429 where it has too much to prepare already."""
        self._only_admin(tenant)
        body, figures = parse_body(raw, WarmBody, {}), self._found(replica)
        cards = [card for card in self._serving.models() if card.id in figures.models and card.pictures is not None]
        if not cards or cards[0].pictures is None:
            raise invalid("id", f"`{replica[:256]}` makes no pictures or videos: nothing is warmed there by size.")
        shapes = shapes_of(body, cards[0].pictures, cards[0].id)
        known = {(one.height, one.width, one.frames) for one in figures.preparing}
        if len(known | {(one.height, one.width, one.frames) for one in shapes}) > SHAPES_MAX:
            raise CapacityError(
                f"`{replica[:256]}` has {len(known)} shapes to prepare, with these more than {SHAPES_MAX}; wait for "
                "some of them, `preparing` of `GET /v1/replicas` tells which, or name fewer."
            )
        self._serving.warm(figures.replica, shapes)
        sizes = [{"size": f"{shape.width}x{shape.height}", "frames": shape.frames} for shape in shapes]
        return {"id": replica, "object": "replica.warming", "sizes": sizes}

    def _found(self, replica: str) -> ReplicaFigures:
        there = {str(figures.replica): figures for figures in self._serving.stats().replicas}
        if replica not in there:
            raise RequestError(
                f"No replica `{replica[:256]}`; there are: {', '.join(there) or 'none'}.",
                status=404,
                code="replica_not_found",
            )
        return there[replica]

    def _only_admin(self, tenant: Tenant) -> None:
        if self._keys.has_admin and not tenant.admin:
            raise RequestError(
                "Only an admin key may look at replicas, drain or warm them.", status=403, code="admin_only"
            )


def shapes_of(body: WarmBody, looks: PictureCard, model: str) -> tuple[DenoiseShape, ...]:
    """Of every size in every length, each once. Raises RequestError for what the model does not make."""
    if not body.sizes:
        raise invalid("sizes", "`sizes` is empty; name at least one, as WIDTHxHEIGHT.")
    if body.seconds and not looks.fps:
        raise invalid("seconds", f"`seconds` is for videos; `{model}` makes pictures.")
    lengths = [seconds_of(one, looks, model) for one in body.seconds] or list(looks.seconds)
    frames = [frames_of(seconds, looks) for seconds in lengths] if looks.fps else [1]
    passes = looks.passes if looks.guidance_scale > 1 else 1
    sides = [pixels_of(size, looks, model) for size in body.sizes[: SHAPES_MAX + 1]]
    shapes = tuple(dict.fromkeys(DenoiseShape(height, width, n, passes) for width, height in sides for n in frames))
    if len(shapes) > SHAPES_MAX:
        raise invalid("sizes", f"`sizes` names more than {SHAPES_MAX} shapes; name fewer.")
    return shapes


def shown(figures: ReplicaFigures, now_ns: Ns) -> JsonObject:
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
        "settle_passes": figures.settle_passes,
        "reserved_bytes": figures.reserved_bytes,
        "warm": None if figures.warm is None else [_warm(shape) for shape in figures.warm],
        "preparing": [_preparing(shape) for shape in figures.preparing],
        "preparing_failed": [_unprepared(one, now_ns) for one in figures.unprepared],
        "reason": figures.reason,
    }


def _warm(shape: WarmShape) -> JsonObject:
    """Pictures or videos that have run there, and the most of them together."""
    return {"size": f"{shape.width}x{shape.height}", "frames": shape.frames, "batch": shape.batch}


def _preparing(shape: ShapePreparation) -> JsonObject:
    """What it is to run before it is asked for: how far that is, and who waits."""
    return {
        "size": f"{shape.width}x{shape.height}",
        "frames": shape.frames,
        "batch": shape.batch,
        "state": shape.state,
        "slices_done": shape.done,
        "slices": shape.slices,
        "waiting": shape.waiting,
    }


def _unprepared(shape: PreparationFailure, now_ns: Ns) -> JsonObject:
    """What could not be run before it is asked for: why, and how long ago."""
    return {
        "size": f"{shape.width}x{shape.height}",
        "frames": shape.frames,
        "batch": shape.batch,
        "error": shape.error,
        "age_ms": ms_from_ns(max(0, now_ns - shape.at_ns)),
    }
