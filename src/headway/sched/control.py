"""What the control node does: hear reports, move requests, drain what an operator names."""

from typing import Final

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Decision
from headway.core.effects import Effect, Record, Send, WakeAt
from headway.core.errors import InvariantError
from headway.core.ids import NodeId, TimerId, TransferId
from headway.core.messages import Drain, Holding, Migrate, MigrationEnded, Undrain, WhatDoYouHold
from headway.core.reports import ReplicaReport
from headway.core.units import NS_PER_S, Ns
from headway.sched.fleet.migration import MigrationParams, Move, ReplicaLoad, choose_pair, choose_request

PATIENCE_NS: Final = 10 * NS_PER_S  # for an answer of the source


class Attempt(msgspec.Struct):
    """One move in progress."""

    number: int
    move: Move
    transfer: TransferId | None = None  # once a request was chosen


class Control:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(self, params: MigrationParams | None, out: list[Effect]) -> None:
        self.reports: dict[NodeId, ReplicaReport] = {}
        self.drained: dict[NodeId, str] = {}  # and why
        self.moved = 0
        self._params, self._out = params, out
        self._attempts: dict[int, Attempt] = {}
        self._number = 0
        self._ended_ns: dict[NodeId, Ns] = {}  # by source, and by destination of a move that was made

    @property
    def moves(self) -> bool:
        """It may migrate requests."""
        return self._params is not None

    def hear(self, report: ReplicaReport, at_ns: Ns) -> None:
        """A report may make a move worth while."""
        known = self.reports.get(report.replica)
        if known is not None and (known.incarnation, known.number) >= (report.incarnation, report.number):
            return
        self.reports[report.replica] = report
        self.consider(at_ns)

    def consider(self, at_ns: Ns) -> None:
        """Begin moves that pay, between replicas that take part in none and have rested since their last."""
        params = self._params
        if params is None:
            return
        while len(self._attempts) < params.moves_max:
            move = choose_pair(self._rested(params, at_ns), params)
            if move is None:
                return
            self._number += 1
            self._attempts[self._number] = Attempt(self._number, move)
            self._out.append(Send(move.source, WhatDoYouHold(self._number)))
            self._out.append(WakeAt(at_ns + PATIENCE_NS, TimerId(f"move:{self._number}")))

    def _rested(self, params: MigrationParams, at_ns: Ns) -> list[ReplicaLoad]:
        taking_part = {node for each in self._attempts.values() for node in (each.move.source, each.move.destination)}
        return [
            _load(report)
            for node, report in self.reports.items()
            if report.role == "llm"
            and node not in taking_part
            and at_ns >= self._ended_ns.get(node, -params.cooldown_ns) + params.cooldown_ns
        ]

    def holding(self, src: NodeId, message: Holding, at_ns: Ns) -> None:
        """Choose the request, and tell the source to move it."""
        attempt = self._attempts.get(message.number)
        if attempt is None or attempt.transfer is not None or attempt.move.source != src:
            return
        move = attempt.move
        chosen = choose_request(message.held, move)
        if chosen is None:
            self._end(attempt, at_ns)
            return
        attempt.transfer = TransferId(f"move-{attempt.number}-{chosen.request}")
        self._out.append(Send(src, Migrate(chosen.request, move.destination, attempt.transfer)))
        loads = [_load(report) for report in self.reports.values()]
        loads.sort(key=lambda load: (load.replica != move.destination, load.tokens, load.replica))
        shown = tuple(Alternative(load.replica, load.tokens) for load in loads[:ALTERNATIVES_MAX])
        gain = "that the head of the queue lacks at" if move.reason == "room" else "lighter than"
        reason = f"{move.reason}: {move.gain_tokens} tokens {gain} {move.source}"
        decision = Decision("pool", at_ns, "migrate", move.destination, reason, shown, chosen.request)
        self._out.append(Record(decision))

    def ended(self, message: MigrationEnded, at_ns: Ns) -> None:
        """The move is over, one way or the other."""
        for attempt in list(self._attempts.values()):
            if attempt.transfer == message.transfer:
                self.moved += message.moved
                if message.moved:
                    self._ended_ns[attempt.move.destination] = at_ns
                self._end(attempt, at_ns)

    def late(self, number: int, at_ns: Ns) -> None:
        """The source has not answered."""
        attempt = self._attempts.get(number)
        if attempt is not None:
            self._end(attempt, at_ns)

    def lost(self, node: NodeId, incarnation: int, at_ns: Ns) -> None:
        """A replica is gone; a move it took part in is over."""
        report = self.reports.get(node)
        if report is not None and report.incarnation > incarnation:
            return
        self.reports.pop(node, None)
        for attempt in list(self._attempts.values()):
            if node in (attempt.move.source, attempt.move.destination):
                self._end(attempt, at_ns)
        self._ended_ns.pop(node, None)

    def drain(self, node: NodeId, is_draining: bool, why: str, at_ns: Ns) -> None:
        """An operator takes a replica out, or brings it back; asking twice changes nothing."""
        if (node in self.drained) == is_draining:
            return
        chosen = "drain" if is_draining else "undrain"
        self._out.append(Record(Decision("pool", at_ns, "drain", chosen, f"{node}: {why}")))
        if is_draining:
            self.drained[node] = why
            self._out.append(Send(node, Drain(why)))
        else:
            del self.drained[node]
            self._out.append(Send(node, Undrain(why)))

    def joined(self, node: NodeId) -> None:
        """A replica that restarts is still drained."""
        if node in self.drained:
            self._out.append(Send(node, Drain(self.drained[node])))

    def check(self) -> None:
        """Raise InvariantError when a move goes nowhere, or a replica takes part in two."""
        taking_part = [node for each in self._attempts.values() for node in (each.move.source, each.move.destination)]
        if len(set(taking_part)) != len(taking_part):
            raise InvariantError(f"a replica takes part in two moves, or moves to itself: {taking_part}")

    def _end(self, attempt: Attempt, at_ns: Ns) -> None:
        del self._attempts[attempt.number]
        self._ended_ns[attempt.move.source] = at_ns


def _load(report: ReplicaReport) -> ReplicaLoad:
    return ReplicaLoad(
        report.replica,
        report.running_kv_tokens + report.waiting_prefill_tokens,
        report.running,
        report.draining,
        report.kv_blocks_free * report.block_size,
        report.blocked_tokens,
    )
