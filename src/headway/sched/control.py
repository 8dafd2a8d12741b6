"""What the control node does: hear reports, move one request at a time, drain what an operator names."""

from typing import Final

import msgspec

from headway.core.decisions import Alternative, Decision
from headway.core.effects import Effect, Record, Send, WakeAt
from headway.core.errors import InvariantError
from headway.core.ids import NodeId, TimerId, TransferId
from headway.core.messages import Drain, Holding, Migrate, MigrationEnded, Undrain, WhatDoYouHold
from headway.core.reports import ReplicaReport
from headway.core.units import NS_PER_S, Ns
from headway.sched.fleet.migration import MigrationParams, Move, ReplicaLoad, choose_pair, choose_request

PATIENCE_NS: Final = 10 * NS_PER_S  # for an answer of the source


class Attempt(msgspec.Struct):
    """The one move in progress."""

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
        self._attempt: Attempt | None = None
        self._number = 0
        self._ended_ns: Ns | None = None

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
        """Begin a move when none is in progress, the cooldown is over, and one pays."""
        params = self._params
        if params is None or self._attempt is not None:
            return
        if self._ended_ns is not None and at_ns - self._ended_ns < params.cooldown_ns:
            return
        move = choose_pair([_load(report) for report in self.reports.values() if report.role == "llm"], params)
        if move is None:
            return
        self._number += 1
        self._attempt = Attempt(self._number, move)
        self._out.append(Send(move.source, WhatDoYouHold(self._number)))
        self._out.append(WakeAt(at_ns + PATIENCE_NS, TimerId(f"move:{self._number}")))

    def holding(self, src: NodeId, message: Holding, at_ns: Ns) -> None:
        """Choose the request, and tell the source to move it."""
        attempt = self._attempt
        if attempt is None or attempt.number != message.number or attempt.move.source != src:
            return
        chosen = choose_request(message.held)
        if chosen is None:
            self._end(at_ns)
            return
        move = attempt.move
        attempt.transfer = TransferId(f"move-{attempt.number}-{chosen.request}")
        self._out.append(Send(src, Migrate(chosen.request, move.destination, attempt.transfer)))
        shown = tuple(Alternative(load.replica, load.tokens) for load in map(_load, self.reports.values()))
        reason = f"{move.reason}: {move.gain_tokens} tokens lighter than {move.source}"
        decision = Decision("pool", at_ns, "migrate", move.destination, reason, shown, chosen.request)
        self._out.append(Record(decision))

    def ended(self, message: MigrationEnded, at_ns: Ns) -> None:
        """The move is over, one way or the other."""
        if self._attempt is not None and self._attempt.transfer == message.transfer:
            self.moved += message.moved
            self._end(at_ns)

    def late(self, number: int, at_ns: Ns) -> None:
        """The source has not answered."""
        if self._attempt is not None and self._attempt.number == number:
            self._end(at_ns)

    def lost(self, node: NodeId, incarnation: int, at_ns: Ns) -> None:
        """A replica is gone; a move it took part in is over."""
        report = self.reports.get(node)
        if report is not None and report.incarnation > incarnation:
            return
        self.reports.pop(node, None)
        if self._attempt is not None and node in (self._attempt.move.source, self._attempt.move.destination):
            self._end(at_ns)

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
        """Raise InvariantError when a move goes nowhere."""
        if self._attempt is not None and self._attempt.move.source == self._attempt.move.destination:
            raise InvariantError(f"move {self._attempt.number} goes from {self._attempt.move.source} to itself")

    def _end(self, at_ns: Ns) -> None:
        self._attempt, self._ended_ns = None, at_ns


def _load(report: ReplicaReport) -> ReplicaLoad:
    tokens = report.running_kv_tokens + report.waiting_prefill_tokens
    return ReplicaLoad(report.replica, tokens, report.running, report.draining)
