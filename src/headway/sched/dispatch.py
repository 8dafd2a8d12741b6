"""From arrival to replica: forecast, admission, the global queue with late binding, and the hand-over to a replica."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Candidate, Decision
from headway.core.effects import Effect, ErrorOut, Record, Send, WakeAt
from headway.core.errors import InvariantError
from headway.core.ids import NodeId, RequestId, TimerId, TransferId
from headway.core.lifecycle import Change, RequestState
from headway.core.messages import Cancel, PrefixPull, Reserve, Submit
from headway.core.request import FinishReason, LlmRequest
from headway.core.units import Ns, ns_from_s
from headway.sched.admission.protocol import Considered, Outcome, Over, Verdict
from headway.sched.admission.queue import GlobalQueue, Line, line_of
from headway.sched.book import Tracked
from headway.sched.gate import Admissions, Gate, Judged
from headway.sched.router.fleet_view import expected_output
from headway.sched.router.machine import Router
from headway.sched.watch import Silence, Watch

_OUTCOMES: Final[dict[FinishReason, Outcome]] = {
    FinishReason.STOP: "done",
    FinishReason.LENGTH: "done",
    FinishReason.DEADLINE: "late",
}


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long and how often a front tries before it answers with an error."""

    attempts_max: Annotated[int, msgspec.Meta(ge=0)] = 3  # replicas lost under one request
    replica_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0  # in the queue while no replica serves the model
    start_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0  # the same while a replica of the model starts
    full_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0  # in the queue while every replica answers 429 or 503
    full_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # until the next try, where a refusal names no retry-after
    silence: Silence = Silence()
    reserve_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # P/D: for room at the decode replica
    move_min_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # left of a picture or video that leaves a draining replica
    runs_late: bool = False  # run what waited past its TTFT deadline all the same, instead of answering 408

    def dooms(self, tracked: Tracked, at_ns: Ns) -> bool:
        """True when the request waits for what can no longer be in time: its end, or its first token."""
        slo = tracked.request.slo
        if slo.e2e_deadline_ns is not None and at_ns >= slo.e2e_deadline_ns:
            return True
        due_ns = None if self.runs_late or tracked.first_token_ns is not None else slo.ttft_deadline_ns
        return due_ns is not None and at_ns >= due_ns


def _unwatched(tracked: Tracked, _at_ns: Ns) -> None:
    raise InvariantError(f"request {tracked.request.id} is late and nobody ends it")


class Dispatcher:
    """Admission and router over one global queue. Appends what must be done to `out`."""

    def __init__(
        self,
        router: Router,
        admissions: Admissions,
        queue: GlobalQueue,
        watch: Watch,
        patience: Patience,
        out: list[Effect],
    ) -> None:
        self.router, self.queue, self.watch = router, queue, watch
        self.gate = Gate(router, self.queue, admissions)
        self.on_late: Callable[[Tracked, Ns], None] = _unwatched  # ends a waiting request whose deadline has passed
        self._waiting: dict[RequestId, Tracked] = {}
        self._bare_since: dict[Line, Ns] = {}  # lines whose head nobody can take
        self._out = out
        self._replica_wait_ns = ns_from_s(patience.replica_wait_s)
        self._reserve_ns = ns_from_s(patience.reserve_s)
        self.patience = patience

    def consider(self, tracked: Tracked, no_room: ErrorOut | None, at_ns: Ns) -> Judged:
        """Forecast, then let admission decide on the forecast. An immediate dispatch records one decision for both.

        `no_room`: the front itself cannot hold the request, which is a verdict like any other.
        """
        if no_room is None:
            judged = self.gate.judge(tracked.request, at_ns)
        else:
            judged = Judged(Verdict("reject", no_room.code or "refused", no_room), ())
        verdict = judged.verdict
        if verdict.kind != "admit" or verdict.is_shadow:
            decision = Decision("pool", at_ns, "admit", verdict.kind, verdict.reason)
            self._decide(tracked, decision, judged.candidates)
        if verdict.asks_scale_out:
            why = f"the predicted wait for {tracked.request.model} takes too much of its SLO"
            self._out.append(Record(Decision("pool", at_ns, "scale", "scale_out", why)))
        self.gate.hear(Considered(at_ns, tracked.request, verdict), tracked.request.model)
        return judged

    def admit(self, tracked: Tracked, candidates: Sequence[Candidate], at_ns: Ns) -> None:
        """Queue a request that was just considered, and dispatch as far as there is room: its forecast still holds."""
        line = line_of(tracked.request)
        is_alone = self.queue.length(line) == 0
        self.enqueue(tracked, at_ns, candidates)
        self.pump(line, at_ns, candidates if is_alone else None)

    def _decide(self, tracked: Tracked, made: Decision, candidates: Sequence[Candidate]) -> None:
        # The router compared scores, admission the seconds of the forecast.
        is_route = made.kind == "route"
        shown = tuple(
            [
                Alternative(c.replica, c.score if is_route and c.score is not None else c.seconds)
                for c in candidates[:ALTERNATIVES_MAX]
            ]
        )
        decision = Decision(made.level, made.at_ns, made.kind, made.chosen, made.reason, shown, tracked.request.id)
        tracked.decisions.append(decision)
        self._out.append(Record(decision))

    def enqueue(self, tracked: Tracked, at_ns: Ns, candidates: Sequence[Candidate] | None = None) -> None:
        """Wait in the global queue; a timer asks later whether any replica serves the model at all."""
        request = tracked.request
        self.queue.push(request)
        self._waiting[request.id] = tracked
        self.gate.flights.ended(request.id)
        if self.patience.dooms(tracked, at_ns):  # it comes back late: the timer of its deadline has fired already
            self._out.append(WakeAt(at_ns, TimerId(f"ttft:{request.id}")))
        if candidates is None:
            candidates = self.router.forecast(request, at_ns)
        if not candidates:
            self._bare(tracked, at_ns, at_ns)
            if tracked.attempts == 0 and tracked.dispatched_ns is None:
                tracked.cold_ns = at_ns

    def _bare(self, tracked: Tracked, since_ns: Ns, at_ns: Ns) -> None:
        """Nobody can take it; how long that may last counts from when nobody was left."""
        if tracked.bare_ns is None:
            tracked.bare_ns = since_ns
            due_ns = max(at_ns, since_ns + self._replica_wait_ns)
            self._out.append(WakeAt(due_ns, TimerId(f"replica:{tracked.request.id}")))

    def leave(self, request: RequestId) -> None:
        """Take a request out of the queue, if it waits."""
        if self.queue.remove(request):
            del self._waiting[request]

    def is_stranded(self, tracked: Tracked, at_ns: Ns) -> bool:
        """True while the request waits and no replica serves its model."""
        return tracked.request.id in self.queue and not self.router.forecast(tracked.request, at_ns)

    def over(self, tracked: Tracked, reason: FinishReason, output_tokens: int) -> None:
        """The request ended: nothing of it decodes any more, and admission learns how it went."""
        self.gate.flights.ended(tracked.request.id)
        self.queue.ended(tracked.request, output_tokens)
        outcome = _OUTCOMES.get(reason, "lost")
        self.gate.hear(Over(tracked.changed_ns, tracked.request.id, output_tokens, outcome), tracked.request.model)

    def pump_all(self, at_ns: Ns) -> None:
        """Dispatch whoever can go, in every line."""
        for line in self.queue.lines():
            self.pump(line, at_ns)

    def pump(self, line: Line, at_ns: Ns, candidates: Sequence[Candidate] | None = None) -> None:
        """Dispatch from one line, in order, while its head finds room. `candidates`: of the head, if known."""
        while (head := self.queue.head(line, at_ns)) is not None:
            tracked = self._waiting[head]
            if self.patience.dooms(tracked, at_ns):
                self.on_late(tracked, at_ns)
                continue
            if candidates is None:
                candidates = self.router.forecast(tracked.request, at_ns)
            if not candidates:  # its replicas may have gone while it waited for room
                self._bare(tracked, self._bare_since.setdefault(line, at_ns), at_ns)
                return
            self._bare_since.pop(line, None)
            chosen = self._choose(tracked, candidates, at_ns)
            if chosen is None:
                return
            self.queue.dispatch(tracked.request, expected_output(tracked.request), at_ns)
            del self._waiting[head]
            tracked.prefill_due_ns = at_ns + ns_from_s(chosen.seconds)
            self._decide(tracked, Decision("pool", at_ns, "route", chosen.replica, chosen.why), candidates)
            tracked.pull = None if chosen.pull_from is None else (NodeId(chosen.pull_from), chosen.pull_tokens)
            if chosen.decode is not None and chosen.decode != chosen.replica and not tracked.emitted:
                self._reserve(tracked, NodeId(chosen.replica), NodeId(chosen.decode), at_ns)
            else:
                self.submit(tracked, NodeId(chosen.replica), at_ns)
            candidates = None  # what was dispatched changes the next one's

    def _choose(self, tracked: Tracked, candidates: Sequence[Candidate], at_ns: Ns) -> Candidate | None:
        """The best with room that has not failed this request; those that have are for want of any other."""
        others = candidates
        if tracked.failed_at:
            others = [candidate for candidate in candidates if not self._has_failed(tracked, NodeId(candidate.replica))]
        pool = others or candidates
        if self.watch.guard.is_quiet:
            first = next((candidate for candidate in pool if self.router.has_room(candidate)), None)
            if first is not None:
                return first
        free = [candidate for candidate in pool if self.router.has_room(candidate)]
        if not free:
            free = [candidate for candidate in pool if self.router.replicas[NodeId(candidate.replica)].may_be_tried]
        if self.watch.guard.is_quiet:
            return free[0] if free else None
        # A rested breaker is tried soon, whatever the policy thinks of its replica: nobody else would ever close it.
        trial = next((c for c in free if self.watch.guard.wants_trial(NodeId(c.replica), at_ns)), None)
        return trial or (free[0] if free else None)

    def _has_failed(self, tracked: Tracked, node: NodeId) -> bool:
        return tracked.failed_at.get(node) == self.router.replicas[node].incarnation

    def has_untried(self, tracked: Tracked, at_ns: Ns) -> bool:
        """True while a replica is there that has not failed this request."""
        candidates = self.router.forecast(tracked.request, at_ns)
        return any(not self._has_failed(tracked, NodeId(candidate.replica)) for candidate in candidates)

    def second(self, tracked: Tracked, at_ns: Ns) -> NodeId | None:
        """Another replica with room for a request that runs already."""
        for candidate in self.router.forecast(tracked.request, at_ns):
            node = NodeId(candidate.replica)
            is_other = node != tracked.owner and not self._has_failed(tracked, node)
            if is_other and self.watch.guard.is_usable(node, at_ns) and self.router.has_room(candidate):
                return node
        return None

    def full_until_ns(self, tracked: Tracked, at_ns: Ns, candidates: Sequence[Candidate] | None = None) -> Ns | None:
        """When the first of its replicas may be asked again, if all have refused; None: one has room, or none is
        there."""
        if candidates is None:
            candidates = self.router.forecast(tracked.request, at_ns)
        untils = [self.router.replicas[NodeId(candidate.replica)].full_until_ns for candidate in candidates]
        return min(untils) if untils and min(untils) > at_ns else None

    def submit(self, tracked: Tracked, replica: NodeId, at_ns: Ns) -> None:
        """Hand the request over; the replica owns it from here, as the epoch it was reserved under or a new one."""
        if tracked.state is not RequestState.RESERVING:
            tracked.next_epoch()
        tracked.change(Change.DISPATCH, at_ns, f"{replica} epoch {tracked.epoch}")
        tracked.owner, tracked.is_worker_done = replica, False
        if tracked.emitted:
            tracked.resumed_ns = at_ns
        else:  # an earlier dispatch that brought no token was waiting too
            tracked.dispatched_ns = at_ns
            if tracked.cold_ns is not None and tracked.attempts == 0:
                tracked.model_load_ns = max(0, self.router.replicas[replica].joined_ns - tracked.cold_ns)
        self.gate.flights.begun(tracked, tracked.decode or replica)
        tracked.bare_ns = None
        pull = self._pull(tracked, replica)
        number = self.router.commit(tracked.request, replica, at_ns, 0 if pull is None else pull.tokens)
        self.watch.sent(tracked, replica, at_ns)
        message = Submit(
            tracked.request, tracked.epoch, tuple(tracked.emitted), tracked.decode, tracked.transfer, number, pull
        )
        self._out.append(Send(replica, message))

    def _pull(self, tracked: Tracked, replica: NodeId) -> PrefixPull | None:
        """What the replica is to fetch first, from one that is still there."""
        wanted, tracked.pull = tracked.pull, None
        if wanted is None or wanted[0] == replica or wanted[0] not in self.router.replicas:
            return None
        return PrefixPull(TransferId(f"pull-{tracked.request.id}-{tracked.epoch}"), *wanted)

    def _reserve(self, tracked: Tracked, prefill: NodeId, decode: NodeId, at_ns: Ns) -> None:
        request = tracked.request
        assert isinstance(request, LlmRequest)  # the router splits nothing else
        tracked.next_epoch()
        tracked.change(Change.RESERVE, at_ns, f"{decode} for {prefill}")
        tracked.prefill, tracked.decode = prefill, decode
        tracked.transfer = TransferId(f"xfer-{request.id}-{tracked.epoch}")
        self._out.append(Send(decode, Reserve(request, tracked.epoch, tracked.transfer, prefill)))
        self._out.append(WakeAt(at_ns + self._reserve_ns, TimerId(f"reserve:{tracked.epoch}:{request.id}")))

    def stay(self, tracked: Tracked, at_ns: Ns) -> None:
        """P/D: no room at the decode replica in time; the prefill replica keeps the request."""
        assert tracked.prefill is not None  # it is RESERVING
        self.unreserve(tracked)
        self._decide(tracked, Decision("pd", at_ns, "handoff", "stay", "no room at the decode replica"), [])
        self.submit(tracked, tracked.prefill, at_ns)

    def unreserve(self, tracked: Tracked) -> None:
        """Give up the room held at the decode replica."""
        if tracked.decode is not None:
            self._out.append(Send(tracked.decode, Cancel(tracked.request.id, tracked.epoch)))
        tracked.decode = tracked.transfer = None

    def check(self) -> None:
        """Raise InvariantError unless the queue and the waiting requests agree."""
        if len(self.queue) != len(self._waiting):
            raise InvariantError(f"{len(self.queue)} in the queue, {len(self._waiting)} remembered")
        for request, tracked in self._waiting.items():
            if tracked.state is not RequestState.QUEUED:
                raise InvariantError(f"request {request} waits in the queue while {tracked.state}")
