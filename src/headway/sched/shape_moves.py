"""The control node's part of moving diffusion replicas between shape pools: one move per model at a time."""

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Decision
from headway.core.effects import Effect, Record, Send, WakeAt
from headway.core.ids import NodeId, TimerId
from headway.core.messages import Reshape, Reshaped
from headway.core.reports import ReplicaReport, ShapeMoveFigures
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.sched.fleet.shape_pools import (
    Pixels,
    ShapeLoad,
    ShapePoolParams,
    Standing,
    choose_shift,
    pools_of,
    said,
    sizes,
)

SHAPES_TIMER: Final = TimerId("shapes")


class _Known(msgspec.Struct):
    incarnation: int
    number: int
    heard_ns: Ns
    load: ShapeLoad

    def now(self, at_ns: Ns) -> ShapeLoad:
        """Work runs off by itself between two reports."""
        return replace(self.load, work_ns=max(0, self.load.work_ns - (at_ns - self.heard_ns)))


class _Move(msgspec.Struct, frozen=True):
    number: int
    replica: NodeId


class ShapeMoves:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(self, params: ShapePoolParams, out: list[Effect]) -> None:
        self._counts: dict[tuple[str, Literal["moved", "failed"]], int] = {}
        self._params, self._out = params, out
        self._standing = Standing(params)
        self._known: dict[NodeId, _Known] = {}
        self._moving: dict[str, _Move] = {}  # by model
        self._rests_ns: dict[str, Ns] = {}  # until then, by model
        self._cold_ns: dict[str, Ns] = {}  # that the last move of the model took
        self._cannot: dict[tuple[NodeId, Pixels], None] = {}  # that could not be prepared for these sizes
        self._number = 0
        self._is_set = False

    @property
    def figures(self) -> tuple[ShapeMoveFigures, ...]:
        """Moves that are over."""
        return tuple(ShapeMoveFigures(model, outcome, count) for (model, outcome), count in self._counts.items())

    @property
    def moved(self) -> int:
        """Replicas that moved, of all models."""
        return sum(count for (_, outcome), count in self._counts.items() if outcome == "moved")

    def hear(self, report: ReplicaReport, at_ns: Ns) -> None:
        """A report may make a move worth while. Others than diffusion replicas have no shapes."""
        known = self._known.get(report.replica)
        if report.role != "diffusion" or (
            known is not None and (known.incarnation, known.number) >= (report.incarnation, report.number)
        ):
            return
        load = ShapeLoad(report.replica, report.model, report.pixels, report.queued_work_ns, report.draining)
        self._known[report.replica] = _Known(report.incarnation, report.number, at_ns, load)
        if known is not None and known.incarnation < report.incarnation:
            self._forget(report.replica, at_ns)
        self._consider(report.model, at_ns)

    def look(self, at_ns: Ns) -> None:
        """The timer fired: what has held so long may be done now."""
        self._is_set = False
        for model in list(dict.fromkeys(known.load.model for known in self._known.values())):
            self._consider(model, at_ns)

    def _consider(self, model: str, at_ns: Ns) -> None:
        if model in self._moving:
            return
        cold_ns = self._cold_ns.get(model, ns_from_s(self._params.cold_start_s))
        loads = [known.now(at_ns) for known in self._known.values() if known.load.model == model]
        pools = pools_of(loads).get(model, [])
        shift = choose_shift(pools, model, cold_ns, self._params, self._cannot)
        holds = self._standing.holds(model, shift, at_ns)
        if shift is None:
            return
        rest_ns = self._rests_ns.get(model, 0)
        if not holds or at_ns < rest_ns:  # reports may stop while a long plan runs
            self._wake(max(at_ns + ns_from_s(self._params.hold_s), rest_ns))
            return
        self._standing.holds(model, None, at_ns)  # the next one has to prove itself anew
        self._number += 1
        self._moving[model] = _Move(self._number, shift.replica)
        least, most = shift.pixels
        self._out.append(Send(shift.replica, Reshape(self._number, least, most, cold_ns)))
        waits = tuple(Alternative(sizes(pixels), s_from_ns(wait_ns)) for pixels, wait_ns in shift.waits)
        reason = said(shift, cold_ns)
        self._out.append(
            Record(Decision("pool", at_ns, "reshape", shift.replica, reason, waits[:ALTERNATIVES_MAX], None))
        )

    def _wake(self, at_ns: Ns) -> None:
        if not self._is_set:
            self._is_set = True
            self._out.append(WakeAt(at_ns, SHAPES_TIMER))

    def ended(self, src: NodeId, message: Reshaped, at_ns: Ns) -> None:
        """The replica takes the other sizes, or cannot."""
        known = self._known.get(src)
        if known is None or self._moving.get(known.load.model) != _Move(message.number, src):
            return
        if message.error is None:
            known.load = replace(known.load, pixels=(message.pixels_min, message.pixels_max), is_draining=False)
            if message.prepared:  # a way back that costs nothing is no reason to swing
                self._cold_ns[known.load.model] = message.took_ns
        else:
            self._cannot[src, (message.pixels_min, message.pixels_max)] = None
        self._over(src, at_ns, "moved" if message.error is None else "failed")

    def lost(self, node: NodeId, incarnation: int, at_ns: Ns) -> None:
        """A replica is gone, and its move with it: it comes back in the pool that it began in."""
        known = self._known.get(node)
        if known is not None and known.incarnation <= incarnation:
            self._forget(node, at_ns)
            del self._known[node]

    def _forget(self, node: NodeId, at_ns: Ns) -> None:
        """It begins anew: its move is over, and what it could not prepare it may prepare now."""
        self._over(node, at_ns)
        self._cannot = {barred: None for barred in self._cannot if barred[0] != node}

    def _over(self, node: NodeId, at_ns: Ns, outcome: Literal["moved", "failed"] = "failed") -> None:
        for model in [model for model, move in self._moving.items() if move.replica == node]:
            del self._moving[model]
            self._counts[model, outcome] = self._counts.get((model, outcome), 0) + 1
            self._rests_ns[model] = at_ns + ns_from_s(self._params.cooldown_s)
