"""What happens when a dispatch fails, stays silent or is slow: another replica, a wait for one, or the end."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.core.decisions import Alternative, Candidate, Decision
from headway.core.effects import Effect, ErrorOut, Record, Send, WakeAt
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.lifecycle import Change, RequestState
from headway.core.messages import Cancel, Refused, Submit
from headway.core.request import DiffusionRequest, FinishReason, LlmRequest, TextRequest
from headway.core.units import Ns, ms_from_ns, ns_from_ms, ns_from_s, s_from_ns
from headway.sched.admission.queue import line_of
from headway.sched.book import Book, Leg, Tracked
from headway.sched.dispatch import Dispatcher, Patience
from headway.sched.endings import Endings
from headway.sched.watch import Watch

HEDGE_EPOCHS: Final = 1000  # a second leg's epoch lies so far above that no hand-off of the first one reaches it


class Recovery:
    """Appends what must be done to `out`. `counts` are for people."""

    def __init__(self, book: Book, dispatch: Dispatcher, patience: Patience, out: list[Effect]) -> None:
        self.book, self.dispatch = book, dispatch
        self.endings = Endings(book, dispatch, out)
        self.counts = dict.fromkeys(
            ("retried", "resumed", "delayed", "given_up", "over_budget", "silent", "hedged", "hedge_won"), 0
        )
        self._attempts_max, self._out = patience.attempts_max, out
        self._full_wait_ns, self._full_ns = ns_from_s(patience.full_wait_s), ns_from_s(patience.full_s)

    @property
    def _watch(self) -> Watch:
        return self.dispatch.watch

    # Failure

    def failed(self, tracked: Tracked, node: NodeId, why: str, at_ns: Ns, *, is_charged: bool) -> None:
        """Its owner, which it has left, failed it. `is_charged`: to the retry budget; a lost replica's requests are
        not, since every one of them ran only once."""
        self._avoid(tracked, node)
        if tracked.hedge is not None:
            self.endings.promote_hedge(tracked, at_ns)
            return
        request = tracked.request
        tracked.attempts += 1
        self.dispatch.unreserve(tracked)  # its decode replica must not wait for what never comes (aibrix#2289)
        if isinstance(request, LlmRequest | TextRequest):
            tracked.request = msgspec.structs.replace(request, attempts=tracked.attempts)
        if isinstance(request, DiffusionRequest) and tracked.shown is not None:
            tracked.request = tracked.shown.resumed(request)
        if (complete := _complete(tracked)) is not None:
            tracked.change(Change.FINISH, at_ns, why)
            self.endings.end(tracked, complete, None, len(tracked.emitted))
            return
        if tracked.is_leaving:
            self.endings.left(tracked, why, at_ns)
            return
        if isinstance(request, TextRequest) and tracked.is_streaming:
            self._give_up(tracked, why, "the answer had begun and cannot be run again", at_ns)
            return
        if tracked.attempts > self._attempts_max:
            self._give_up(tracked, why, f"{tracked.attempts} attempts failed", at_ns)
            return
        falls_back = isinstance(request, TextRequest) and self.dispatch.gate.has_fallback(request.model, at_ns)
        if falls_back and not self.dispatch.has_untried(tracked, at_ns):  # the edge submits it to the fallback
            self._give_up(tracked, why, "no other replica is left, and another model can answer", at_ns)
            return
        wait_ns = self._watch.budget.take(at_ns) if is_charged else 0
        if wait_ns is None:
            self.counts["over_budget"] += 1
            self._give_up(tracked, why, "the retry budget is used up", at_ns)
            return
        self._again(tracked, why, wait_ns, at_ns)

    def moved(self, tracked: Tracked, node: NodeId, at_ns: Ns) -> None:
        """Its owner saved it and let it go, for another one to go on with it: nobody failed."""
        self._avoid(tracked, node)
        tracked.moved_ns = 0 if tracked.marks is None else tracked.marks.device_ns  # earlier moves are in it
        if isinstance(tracked.request, DiffusionRequest) and tracked.shown is not None:
            tracked.request = tracked.shown.resumed(tracked.request)
        self._again(tracked, f"{node} drains", 0, at_ns)

    def _avoid(self, tracked: Tracked, node: NodeId) -> None:
        """Its retries go elsewhere while others are there; a restarted replica is another one."""
        replica = self.dispatch.router.replicas.get(node)
        if replica is not None:
            tracked.failed_at[node] = replica.incarnation

    def _again(self, tracked: Tracked, why: str, wait_ns: Ns, at_ns: Ns) -> None:
        request = tracked.request
        is_resumed = tracked.emitted or (isinstance(request, DiffusionRequest) and request.begun)
        self.counts["resumed" if is_resumed else "retried"] += 1
        chosen = "resume" if is_resumed else "retry"
        self.decide(tracked, Decision("pool", at_ns, "retry", chosen, why))
        self.endings.ownership.refuse(tracked)
        tracked.change(Change.REQUEUE, at_ns, why)
        if wait_ns:
            self.counts["delayed"] += 1
            self.dispatch.gate.flights.ended(request.id)
            self._out.append(WakeAt(at_ns + wait_ns, TimerId(f"retry:{tracked.attempts}:{request.id}")))
        else:
            self.dispatch.enqueue(tracked, at_ns)

    def _give_up(self, tracked: Tracked, why: str, because: str, at_ns: Ns) -> None:
        self.counts["given_up"] += 1
        self.decide(tracked, Decision("pool", at_ns, "retry", "give_up", f"{why}; {because}"))
        tracked.change(Change.FAIL, at_ns, why)
        error = ErrorOut(502, "engine_lost", f"request {tracked.request.id}: {why}; {because}")
        self.endings.end(tracked, FinishReason.LOST, error, len(tracked.emitted))

    def answered(self, tracked: Tracked, src: NodeId, at_ns: Ns) -> None:
        """The first token of a dispatch came; later ones change nothing."""
        watch = self._watch
        watch.guard.answered(src, tracked.request.id, at_ns)
        if watch.hedging is not None and not tracked.has_answered:
            tracked.has_answered = True
            watch.hedging.learned(at_ns - tracked.sent_ns)

    def retry_due(self, tracked: Tracked, attempt: int, at_ns: Ns) -> None:
        """The budget allows a retry that had to wait."""
        if tracked.attempts != attempt:
            return
        if tracked.state is RequestState.QUEUED and tracked.request.id not in self.dispatch.queue:
            self.dispatch.enqueue(tracked, at_ns)
            self.dispatch.pump(line_of(tracked.request), at_ns)

    def decide(self, tracked: Tracked, decision: Decision) -> None:
        """Record a decision about a request."""
        decision = msgspec.structs.replace(decision, request=tracked.request.id)
        tracked.decisions.append(decision)
        self._out.append(Record(decision))

    # Backpressure

    def mark_full(self, src: NodeId, message: Refused, at_ns: Ns) -> None:
        """A replica refused for now: ask it again when it said, or after a while."""
        told_ms = message.retry_after_ms
        until_ns = at_ns + (self._full_ns if told_ms is None else ns_from_ms(told_ms))
        self.dispatch.router.refused(src, until_ns, is_told=told_ms is not None)
        self._out.append(WakeAt(until_ns, TimerId(f"guard:{src}:{until_ns}")))

    def wait_while_full(self, tracked: Tracked, at_ns: Ns, candidates: Sequence[Candidate] | None = None) -> None:
        """Every replica answers 429 or 503: wait in the queue if one will be asked again in time, else say so.
        `candidates`: if known."""
        request = tracked.request
        if request.id not in self.dispatch.queue:
            return
        until_ns = self.dispatch.full_until_ns(tracked, at_ns, candidates)
        if until_ns is None:
            return
        if tracked.full_ns is None:
            tracked.full_ns = at_ns
            self._out.append(WakeAt(at_ns + self._full_wait_ns, TimerId(f"full:{request.id}")))
        ttft_ns = None if tracked.first_token_ns is not None else request.slo.ttft_deadline_ns
        limits = (tracked.full_ns + self._full_wait_ns, request.slo.e2e_deadline_ns, ttft_ns)
        if any(limit_ns is not None and until_ns > limit_ns for limit_ns in limits):
            self._all_full(tracked, until_ns, at_ns)

    def still_full(self, tracked: Tracked | None, at_ns: Ns) -> None:
        """It has waited for as long as it may."""
        if tracked is None or tracked.is_over or tracked.request.id not in self.dispatch.queue:
            return
        until_ns = self.dispatch.full_until_ns(tracked, at_ns)
        if until_ns is not None:
            self._all_full(tracked, until_ns, at_ns)

    def _all_full(self, tracked: Tracked, until_ns: Ns, at_ns: Ns) -> None:
        request = tracked.request
        self.endings.stop(tracked, FinishReason.REJECTED, Change.FAIL, at_ns)
        message = f"request {request.id}: every replica of {request.model} is full; retry later"
        error = ErrorOut(429, "queue_full", message, retry_after_ms=max(1, round(ms_from_ns(until_ns - at_ns))))
        self.endings.end(tracked, FinishReason.REJECTED, error, len(tracked.emitted))

    # Silence (dynamo#13088)

    def look(self, at_ns: Ns) -> None:
        """Take requests away from replicas that owe a word for too long. O(open requests), a few times per limit."""
        self._watch.fired()
        for tracked in list(self.book.requests.values()):
            owner = None if tracked.owner is None else self.dispatch.router.replicas.get(tracked.owner)
            report = None if owner is None else owner.report
            silent_ns = self._watch.silent_for(
                tracked,
                at_ns,
                0 if owner is None else owner.work.told_ns,
                is_preparing=report is not None and bool(report.preparing),
            )
            if silent_ns is not None:
                self._silent(tracked, silent_ns, at_ns)
        if any(tracked.owner is not None for tracked in self.book.requests.values()):
            self._watch.arm(at_ns)

    def _silent(self, tracked: Tracked, silent_ns: Ns, at_ns: Ns) -> None:
        node = tracked.owner
        assert node is not None
        self.counts["silent"] += 1
        what = "no end" if tracked.is_over else "nothing" if tracked.is_streaming else "no first token"
        why = f"{node} said {what} for {s_from_ns(silent_ns):.1f} s"
        if tracked.is_over:
            self.endings.disown(tracked, "neutral", why, at_ns)
            self.endings.close(tracked)
            return
        self._out.append(Send(node, Cancel(tracked.request.id, tracked.epoch)))
        self.endings.disown(tracked, "fault", why, at_ns)
        self.failed(tracked, node, why, at_ns, is_charged=True)

    # Hedging

    def hedge_due(self, tracked: Tracked, epoch: int, at_ns: Ns) -> None:
        """A request is still without its first token: send it to a second replica, if one has room."""
        hedging = self._watch.hedging
        if hedging is None or tracked.state is not RequestState.DISPATCHED:
            return
        if tracked.epoch != epoch or tracked.hedge is not None or tracked.emitted:
            return
        node = self.dispatch.second(tracked, at_ns)
        if node is None or not hedging.take():
            return
        self.counts["hedged"] += 1
        tracked.epochs = max(tracked.epochs, tracked.epoch) + HEDGE_EPOCHS
        tracked.hedge = Leg(node, tracked.epochs, at_ns)
        self.endings.hedged[tracked.request.id] = tracked
        waited_ms = ms_from_ns(at_ns - tracked.sent_ns)
        shown = (Alternative(str(tracked.owner), waited_ms),)
        why = f"no first token from {tracked.owner} after {waited_ms:.0f} ms"
        self.decide(tracked, Decision("pool", at_ns, "hedge", node, why, shown))
        tracked.tell(at_ns, f"hedged at {node} as epoch {tracked.epochs}")
        number = self.dispatch.router.commit(tracked.request, node, at_ns)
        self._watch.guard.sent(node, tracked.request.id, at_ns)
        self._out.append(Send(node, Submit(tracked.request, tracked.epochs, (), None, None, number)))

    def settle_hedge(self, tracked: Tracked, src: NodeId, epoch: int, at_ns: Ns) -> None:
        """A leg of a hedged request speaks: the first one wins, the other is cancelled at once."""
        leg = tracked.hedge
        if leg is None or tracked.is_over:
            return
        if (src, epoch) == (leg.node, leg.epoch):
            first = tracked.owner
            assert first is not None
            self.counts["hedge_won"] += 1
            self._out.append(Send(first, Cancel(tracked.request.id, tracked.epoch)))
            self.endings.disown(tracked, "neutral", f"{leg.node} was faster", at_ns)
            self.endings.promote_hedge(tracked, at_ns)
        elif (src, epoch) == (tracked.owner, tracked.epoch):
            self.endings.drop_hedge(tracked, "neutral", f"{src} was faster", at_ns)

    def hedge_failed(self, tracked: Tracked, why: str, at_ns: Ns) -> None:
        """The second leg gave up; the first one goes on."""
        leg = tracked.hedge
        assert leg is not None
        self._avoid(tracked, leg.node)
        self.endings.drop_hedge(tracked, "fault", why, at_ns, is_told=False)

    def hedge_spoke(self, src: NodeId, requests: tuple[RequestId, ...], epochs: tuple[int, ...], at_ns: Ns) -> None:
        """Tokens came while requests have two legs."""
        for request, epoch in zip(requests, epochs, strict=True):
            tracked = self.endings.hedged.get(request)
            if tracked is not None:
                self.settle_hedge(tracked, src, epoch, at_ns)


def _complete(tracked: Tracked) -> FinishReason | None:
    """How the request ended of which everything was passed on, so that only the word Finished was lost."""
    request, shown = tracked.request, tracked.shown
    if isinstance(request, LlmRequest) and len(tracked.emitted) >= request.max_tokens:
        return FinishReason.LENGTH
    return FinishReason.STOP if shown is not None and shown.is_complete else None
