"""One replica as a front sees it: the last report, plus own dispatches the report had not seen, less what ended.

Several fronts: each sees only its own dispatches, a report carries everybody's. What the others sent since is taken to
be as much as this front sent, in the proportion in which the last report shows their requests beside its own.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.reports import DenoiseCoefficients, ReplicaReport, StepCoefficients
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns
from headway.sched.router.backlog import Backlog
from headway.sched.router.speeds import Speed
from headway.sched.router.work import PendingWork, takes

OTHERS_MAX: Final = 16.0  # requests of other fronts per own one that are believed
SMOOTHING: Final = 0.9  # weight of the past in that proportion, per report, and in the mean prompt, per dispatch


class Sent(msgspec.Struct, gc=False):
    """One unfinished dispatch of this front."""

    number: int
    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int
    at_ns: Ns
    ahead: int = 0  # uncached tokens of this front there without a first token, its own included
    begun_ns: Ns | None = None
    beside: int = 0  # dispatches of this front there when its first token came


def expected_output(request: Request) -> int:
    """Output tokens to plan with: the prediction, else the limit where the client forces it, else one."""
    if isinstance(request, DiffusionRequest):
        return 0
    if request.output_tokens_predicted is not None:
        return min(request.output_tokens_predicted, request.max_tokens)
    return request.max_tokens if request.ignores_eos else 1


class Replica:
    """Belief about one replica. What a policy reads are plain fields, brought up to date by `look` and by every event:
    a forecast reads them for each replica of the fleet."""

    def __init__(self, node: NodeId, incarnation: int, at_ns: Ns) -> None:
        self.id, self.incarnation = node, incarnation
        self.report: ReplicaReport | None = None
        self.joined_ns = self.heard_ns = self._known_ns = self.now_ns = at_ns
        self.number = 0  # of the last dispatch
        self.full_until_ns: Ns = 0  # it refused; a report ends that sooner unless it named the time itself
        self.is_full_told = False
        self.hit_tokens = 0  # of the request that is ranked; set by the router before a policy looks
        self.distinct_hits = 0  # of these, beyond what most candidates hold too
        self.own_work_ns: Ns = 0  # of the pictures that are ranked, set alike
        self.work_ns: Ns = 0  # until a diffusion replica has done all that it holds, as of `now_ns`
        # From the report
        self.kv_tokens = self.kv_tokens_total = self.step_ns = self.adapters_max = 0
        self.kv_usage = self.prefill_tokens_per_s = 0.0
        self.step_cost: StepCoefficients | None = None
        self.denoise_cost: DenoiseCoefficients | None = None
        self.source, self.host = "counted", ""
        self.adapters: tuple[str, ...] = ()
        self.is_draining = False
        # As of `now_ns`
        self.requests = self.waiting = self.queued_tokens = self.queued_tokens_spread = 0
        self.age_ns: Ns = 0  # of what is known. An idle replica says nothing: its report does not age
        # Own dispatches
        self.output_tokens_expected = self.uncached_in_flight = 0
        self._sent: dict[RequestId, Sent] = {}
        self._unseen: dict[RequestId, int] = {}  # uncached prompt tokens of dispatches the report has not seen
        self._unseen_tokens = 0
        self._unbegun: dict[RequestId, int] = {}  # and of those without a first token, in order
        self._ended = 0  # dispatches that ended since the report, and that it had counted
        self._others = 0.0  # requests of other fronts per own one
        self._others_waiting = 0  # of them, in the last report
        self._uncached_mean = 0.0
        self._begun_ns = self._awake_ns = at_ns
        self._backlog, self._speed, self.work = Backlog(), Speed(), PendingWork()

    @property
    def in_flight(self) -> int:
        """This front's own unfinished dispatches."""
        return len(self._sent)

    def takes(self, request: Request, kind: str) -> bool:
        """True when such a request (`work.kind_of`) is of its pool's sizes, in its memory and in its model's power."""
        if self.report is None or not isinstance(request, DiffusionRequest):
            return self.report is not None
        return takes(self.report, request, has_room=self.work.fits(request, kind))

    @property
    def may_be_tried(self) -> bool:
        """An upstream where nothing of ours runs: what waits there is of others, who may always have some."""
        is_shared = self.report is not None and self.report.role == "upstream"
        return is_shared and not self._sent and self.now_ns >= self.full_until_ns

    @property
    def queue_ns(self) -> Ns | None:
        """Time until its queue is computed; None while no rate is known."""
        if self.prefill_tokens_per_s <= 0:
            return None
        return round(self.queued_tokens / self.prefill_tokens_per_s * NS_PER_S)

    def look(self, at_ns: Ns) -> None:
        """Bring what depends on the time up to date."""
        self.now_ns = at_ns
        report, unseen = self.report, len(self._unseen)
        counted = self.waiting = 0
        if report is not None:
            counted, self.waiting = report.waiting + report.running, report.waiting
        self.waiting += unseen
        self.requests = (counted - self._ended if counted > self._ended else 0) + unseen
        if self.denoise_cost is not None:  # pictures: no prompt waits, and work runs off by itself
            self.work_ns = self.work.ahead_ns(at_ns)
            self.age_ns = at_ns - max(self._known_ns, self._awake_ns) if counted or self._sent else 0
            return
        if not counted and not self._sent:
            self.age_ns, self.queued_tokens, self.queued_tokens_spread = 0, 0, 0
            return
        known_ns, awake_ns = self._known_ns, self._awake_ns
        self.age_ns = at_ns - (known_ns if known_ns > awake_ns else awake_ns)
        if report is None or report.source == "engine":
            level, doubt = self._backlog.look(at_ns, self.uncached_in_flight)
        else:
            level, doubt = self._counted(at_ns)
        self.queued_tokens, self.queued_tokens_spread = round(level), round(doubt)

    def _counted(self, at_ns: Ns) -> tuple[float, float]:
        """The queue of a replica whose report has no prompt tokens: own prompts without a first token, less what the
        first of them has had computed, and what others have waiting there."""
        own = float(self.uncached_in_flight)
        if self._unbegun and self.prefill_tokens_per_s > 0:
            first, since_ns = next(iter(self._unbegun)), at_ns - self._begun_ns
            since_ns = min(since_ns, at_ns - self._sent[first].at_ns)
            own -= min(self.prefill_tokens_per_s * since_ns / NS_PER_S, 0.9 * self._unbegun[first])
        others = self._others_waiting * self._uncached_mean + self._others * self._unseen_tokens
        return own + others, 0.5 * others

    def hear(self, report: ReplicaReport, at_ns: Ns, earlier: Sequence[Ns] = ()) -> None:
        """Fold in a report, unless an older one. Others, at `earlier` times, said the same of the queue."""
        if self.report is not None and report.number <= self.report.number:
            return
        self.report, self.heard_ns = report, at_ns
        self.work.hear(report, at_ns)
        self.denoise_cost = report.denoise_cost
        # A scraped report is sent again whenever this gateway's own part of it changes; its age is that of the scrape.
        self._known_ns = min(at_ns, report.at_ns) if report.source == "scrape" else at_ns
        if not self.is_full_told:
            self.full_until_ns = 0
        self._ended = 0
        while self._unseen:
            request = next(iter(self._unseen))
            if self._sent[request].number > report.submits_seen:
                break
            self._unseen_tokens -= self._unseen.pop(request)
        self._hear_others(report)
        self.kv_tokens, self.step_ns = report.running_kv_tokens, report.step_ns
        self.kv_tokens_total = report.kv_blocks_total * report.block_size
        self.kv_usage = 1.0 - report.kv_blocks_free / report.kv_blocks_total if report.kv_blocks_total else 0.0
        self.source, self.host, self.is_draining = report.source, report.host, report.draining
        self.adapters, self.adapters_max = report.adapters, report.adapters_max
        self._learn()
        for heard_ns in earlier:
            unseen = self._unseen_tokens * (1.0 + self._others)
            self._backlog.hear(report.waiting_prefill_tokens, unseen, self.prefill_tokens_per_s, heard_ns)
            self._hear_others(report)
        unseen = self._unseen_tokens * (1.0 + self._others)
        self._backlog.hear(report.waiting_prefill_tokens, unseen, self.prefill_tokens_per_s, at_ns)
        self.look(at_ns)

    def _hear_others(self, report: ReplicaReport) -> None:
        own = len(self._sent) - len(self._unseen)
        others = max(0, report.waiting + report.running - own)
        if own:
            self._others = SMOOTHING * self._others + (1 - SMOOTHING) * min(OTHERS_MAX, others / own)
        if report.source != "engine":
            waiting_own = sum(request not in self._unseen for request in self._unbegun)
            self._others_waiting = min(others, max(0, report.waiting - waiting_own))

    def _learn(self) -> None:
        """What the report says of its speed counts, else what was measured from here."""
        report, speed = self.report, self._speed
        told = 0.0 if report is None else report.prefill_tokens_per_s
        self.prefill_tokens_per_s = told or speed.prefill_tokens_per_s
        self.step_cost = report.step_cost if report is not None and report.step_cost is not None else speed.step_cost
        self._backlog.rate = self.prefill_tokens_per_s

    def refused(self, until_ns: Ns, *, is_told: bool) -> None:
        """It is full until then; `is_told`: it said so itself."""
        self.full_until_ns, self.is_full_told = until_ns, is_told

    def dispatch(self, request: Request, hit_tokens: int, at_ns: Ns) -> int:
        """Count a dispatch, of whose prompt `hit_tokens` are taken to be cached; return its number."""
        if not self.requests and not self._sent:
            self._awake_ns = at_ns
            self._backlog.wake(at_ns)
        if not self._unbegun:
            self._begun_ns = at_ns  # from here its first chunk can be computed
        self.number += 1
        self.work.sent(request, self.number)
        prompt = 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens
        uncached = max(0, prompt - hit_tokens)
        self.uncached_in_flight += uncached
        sent = Sent(self.number, prompt, uncached, expected_output(request), at_ns, self.uncached_in_flight)
        self._sent[request.id] = sent
        self._unseen[request.id] = self._unbegun[request.id] = uncached
        self._unseen_tokens += uncached
        self.output_tokens_expected += sent.output_tokens
        mean = self._uncached_mean
        self._uncached_mean = SMOOTHING * mean + (1 - SMOOTHING) * uncached if mean else float(uncached)
        self._backlog.add(uncached * (1.0 + self._others), at_ns)
        self.look(at_ns)
        return self.number

    def predicted(self, request: RequestId) -> int | None:
        """Prompt tokens that were taken to be cached here when it was dispatched; None when it is not under way."""
        sent = self._sent.get(request)
        return None if sent is None else sent.prompt_tokens - sent.uncached_tokens

    def begun(self, request: RequestId, cached_tokens: int | None, at_ns: Ns) -> Ns | None:
        """Its first token came: return when it was dispatched, once."""
        sent = self._sent.get(request)
        if sent is None or sent.begun_ns is not None:
            return None
        sent.begun_ns, sent.beside = at_ns, len(self._sent)
        self.uncached_in_flight -= self._unbegun.pop(request)
        self._begun_ns = at_ns
        if request in self._unseen:
            self._unseen_tokens -= self._unseen[request]
            self._unseen[request] = 0
        # What turned out to be cached was never ahead of anybody.
        surprise = 0 if cached_tokens is None else sent.uncached_tokens - max(0, sent.prompt_tokens - cached_tokens)
        self._speed.began(sent.ahead - surprise, at_ns - sent.at_ns)
        self._learn()
        self.look(at_ns)
        return sent.at_ns

    def expect(self, request: Request) -> None:
        """Its output is now predicted to be of another length."""
        sent = self._sent.get(request.id)
        if sent is not None:
            tokens = expected_output(request)
            self.output_tokens_expected += tokens - sent.output_tokens
            sent.output_tokens = tokens

    def adopt(self, request: Request) -> None:
        """The request moved here from another replica; reports already count it."""
        sent = Sent(self.number, 0, 0, expected_output(request), self.now_ns, begun_ns=self.now_ns)
        self._sent[request.id] = sent
        self.output_tokens_expected += sent.output_tokens

    def end(self, request: RequestId, output_tokens: int, at_ns: Ns) -> None:
        """A dispatch is over or moved away."""
        sent = self._sent.get(request)
        if sent is None:
            return
        self.work.ended(request)
        if sent.beside and sent.begun_ns is not None:
            self._speed.ended(output_tokens, (sent.beside + len(self._sent)) / 2, at_ns - sent.begun_ns)
            self._learn()
        del self._sent[request]
        self.output_tokens_expected -= sent.output_tokens
        if sent.begun_ns is None:
            self.uncached_in_flight -= self._unbegun.pop(request)
        if request in self._unseen:
            self._unseen_tokens -= self._unseen.pop(request)
        else:
            self._ended += 1
        self.look(at_ns)

    def check(self) -> bool:
        """True when the incremental sums match their parts."""
        sent = self._sent.values()
        return (
            self._unseen_tokens == sum(self._unseen.values())
            and self.output_tokens_expected == sum(item.output_tokens for item in sent)
            and self.uncached_in_flight == sum(item.uncached_tokens for item in sent if item.begun_ns is None)
            and self.uncached_in_flight == sum(self._unbegun.values())
            and self.work.check()
        )


def share_hits(replicas: Sequence[Replica]) -> None:
    """Set `distinct_hits`: a prefix that more than half of them hold, such as a system prompt, speaks for none of them.

    production-stack#957: whoever served it first otherwise gets everything.
    """
    hits = [replica.hit_tokens for replica in replicas]
    if not any(hits):
        for replica in replicas:
            replica.distinct_hits = 0
        return
    shared = sorted(hits, reverse=True)[len(replicas) // 2]
    for replica in replicas:
        replica.distinct_hits = max(0, replica.hit_tokens - shared)
