"""Health and breaker together: which replicas may be given a request now, and who is tried when all are out."""

from collections.abc import Sequence

from headway.core.decisions import Alternative, Decision
from headway.core.effects import Effect, Record, WakeAt
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.units import Ns
from headway.sched.fleet.breaker import BreakerParams, Breakers, Outcome
from headway.sched.fleet.health import Health, HealthParams

TIMER = TimerId("guard:")  # a rest is over: whoever waits may go


class Guard:
    """Appends what must be done, decisions included, to `out`."""

    def __init__(self, health: HealthParams, breaker: BreakerParams, out: list[Effect]) -> None:
        self.health, self.breakers = Health(health), Breakers(breaker)
        self.openings = self.downs = 0  # ever
        self._out = out

    def joined(self, node: NodeId) -> None:
        """An instance is there; one that restarted begins anew."""
        self.health.joined(node)
        self.breakers.joined(node)

    def left(self, node: NodeId) -> None:
        """It is gone."""
        self.health.left(node)
        self.breakers.left(node)

    @property
    def is_quiet(self) -> bool:
        """True while every replica is usable: then nobody needs to ask about each."""
        return not self.breakers.disturbed and not self.health.down

    def is_usable(self, node: NodeId, at_ns: Ns) -> bool:
        """True when health and breaker let it be a candidate."""
        return self.health.is_up(node) and self.breakers.is_usable(node, at_ns)

    def wants_trial(self, node: NodeId, at_ns: Ns) -> bool:
        """True when its breaker has rested and waits for the request that finds out whether it works again."""
        return self.breakers.state(node) != "closed" and self.is_usable(node, at_ns)

    def last_resort(self, nodes: Sequence[NodeId], at_ns: Ns) -> NodeId | None:
        """Of replicas that are all out, the one that may be tried with one request: healthy and longest rested first.

        Nobody answers 503 for ever while a replica is alive (dynamo#10564).
        """
        ready: list[tuple[bool, Ns, NodeId]] = []
        for node in nodes:
            from_ns = self.breakers.resort_ns(node)
            if from_ns is not None and from_ns <= at_ns:
                ready.append((not self.health.is_up(node), from_ns, node))
        return min(ready)[2] if ready else None

    def probed(self, node: NodeId, ok: bool, reason: str, at_ns: Ns) -> None:
        """A health check came back."""
        if self.health.probed(node, ok):
            self.downs += not ok
            state = "up" if ok else "down"
            self._out.append(Record(Decision("pool", at_ns, "health", state, f"{node}: {reason}")))

    def sent(self, node: NodeId, request: RequestId, at_ns: Ns) -> None:
        """A request goes there."""
        if self.breakers.tried(node, request, is_down=not self.health.is_up(node)):
            self._changed(node, f"{node} is tried with {request}", at_ns)

    def answered(self, node: NodeId, request: RequestId, at_ns: Ns) -> None:
        """Its first token came: a trial need not wait for the last one."""
        if self.breakers.is_trial(node, request):
            self.ended(node, request, "success", f"it answered {request}", at_ns)

    def ended(self, node: NodeId, request: RequestId, outcome: Outcome, reason: str, at_ns: Ns) -> None:
        """A request there is over, one way or the other."""
        if not self.breakers.ended(node, request, outcome, at_ns):
            return
        self._changed(node, f"{node}: {reason}", at_ns)
        if outcome == "success":  # of a trial, no other closes a breaker: stronger than a probe of its health
            self.probed(node, True, f"it answered {request}", at_ns)

    def _changed(self, node: NodeId, reason: str, at_ns: Ns) -> None:
        state = self.breakers.state(node)
        faults, successes = self.breakers.decided_on(node)
        shown = (Alternative("faults", faults), Alternative("successes", successes))
        self._out.append(Record(Decision("pool", at_ns, "breaker", state, reason, shown)))
        if state == "open":
            self.openings += 1
            until_ns, resort_ns = self.breakers.until_ns(node), self.breakers.resort_ns(node)
            due = [until_ns] if resort_ns is None or resort_ns == until_ns else [resort_ns, until_ns]
            self._out.extend(WakeAt(due_ns, TimerId(f"{TIMER}{node}:{due_ns}")) for due_ns in due)
