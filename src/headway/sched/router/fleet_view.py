"""One replica as a front sees it: the last report, plus own dispatches the report had not seen, less what ended."""

from collections.abc import Sequence

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.reports import ReplicaReport, StepCoefficients
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns


class Sent(msgspec.Struct, gc=False):
    """One unfinished dispatch of this front."""

    number: int
    uncached_tokens: int
    output_tokens: int
    at_ns: Ns
    has_begun: bool = False


def expected_output(request: Request) -> int:
    """Output tokens to plan with: the prediction, else the limit where the client forces it, else one."""
    if isinstance(request, DiffusionRequest):
        return 0
    if request.output_tokens_predicted is not None:
        return min(request.output_tokens_predicted, request.max_tokens)
    return request.max_tokens if request.ignores_eos else 1


class Replica:
    """Belief about one replica. Sums are kept incrementally; a report only moves the line between seen and unseen."""

    def __init__(self, node: NodeId, incarnation: int, at_ns: Ns) -> None:
        self.id, self.incarnation = node, incarnation
        self.report: ReplicaReport | None = None
        self.joined_ns = self.heard_ns = at_ns
        self.now_ns = at_ns  # set by the router before a policy looks
        self.number = 0  # of the last dispatch
        self.is_full = False  # refused since the last report
        self.hit_tokens = 0  # of the request that is ranked; set by the router before a policy looks
        self.distinct_hits = 0  # of these, beyond what most candidates hold too
        self.output_tokens_expected = 0
        self.uncached_in_flight = 0
        self._sent: dict[RequestId, Sent] = {}
        self._unseen: dict[RequestId, int] = {}  # uncached prompt tokens of dispatches the report has not seen
        self._unseen_tokens = 0
        self._ended = 0  # dispatches that ended since the report, and that it had counted

    @property
    def requests(self) -> int:
        """Waiting and running."""
        counted = 0 if self.report is None else self.report.waiting + self.report.running
        return max(0, counted - self._ended) + len(self._unseen)

    @property
    def waiting(self) -> int:
        """Not yet scheduled there."""
        return (0 if self.report is None else self.report.waiting) + len(self._unseen)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens not yet computed: reported, less drained since by the learned rate, plus unseen."""
        if self.report is None:
            return self._unseen_tokens
        drained = self.report.prefill_tokens_per_s * (self.now_ns - self.heard_ns) / NS_PER_S
        return max(0, self.report.waiting_prefill_tokens - round(drained)) + self._unseen_tokens

    @property
    def queued_tokens_spread(self) -> int:
        """Half of what the learned rate may or may not have drained since the report."""
        return 0

    @property
    def kv_tokens(self) -> int:
        """Live KV in tokens."""
        return 0 if self.report is None else self.report.running_kv_tokens

    @property
    def in_flight(self) -> int:
        """This front's own unfinished dispatches."""
        return len(self._sent)

    @property
    def kv_tokens_total(self) -> int:
        """KV capacity in tokens; 0 while unknown."""
        return 0 if self.report is None else self.report.kv_blocks_total * self.report.block_size

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks in use; 0 while unknown."""
        if self.report is None or not self.report.kv_blocks_total:
            return 0.0
        return 1.0 - self.report.kv_blocks_free / self.report.kv_blocks_total

    @property
    def prefill_tokens_per_s(self) -> float:
        """Learned; 0 while unknown."""
        return 0.0 if self.report is None else self.report.prefill_tokens_per_s

    @property
    def step_ns(self) -> Ns:
        """Smoothed time of its steps; 0 while unknown."""
        return 0 if self.report is None else self.report.step_ns

    @property
    def step_cost(self) -> StepCoefficients | None:
        """What it believes its steps cost."""
        return None if self.report is None else self.report.step_cost

    @property
    def age_ns(self) -> Ns:
        """Age of what is known. An idle replica says nothing because nothing changes: its report does not age."""
        report = self.report
        if report is not None and not report.running and not report.waiting and not self._sent:
            return 0
        return self.now_ns - self.heard_ns

    @property
    def source(self) -> str:
        """How its report came to be."""
        return "counted" if self.report is None else self.report.source

    @property
    def adapters(self) -> tuple[str, ...]:
        """LoRA adapters loaded there."""
        return () if self.report is None else self.report.adapters

    @property
    def adapters_max(self) -> int:
        """How many LoRA adapters fit there; 0 while unknown."""
        return 0 if self.report is None else self.report.adapters_max

    @property
    def host(self) -> str:
        """Its machine."""
        return "" if self.report is None else self.report.host

    @property
    def is_draining(self) -> bool:
        """Takes nothing new."""
        return self.report is not None and self.report.draining

    @property
    def queue_ns(self) -> Ns | None:
        """Time until its queue is computed; None while no rate is known."""
        if self.report is None or self.report.prefill_tokens_per_s <= 0:
            return None
        return round(self.queued_tokens / self.report.prefill_tokens_per_s * NS_PER_S)

    def hear(self, report: ReplicaReport, at_ns: Ns) -> None:
        """Fold in a report; one that is older than the last is dropped."""
        if self.report is not None and report.number <= self.report.number:
            return
        self.report, self.heard_ns, self.now_ns = report, at_ns, at_ns
        self.is_full = False
        self._ended = 0
        while self._unseen:
            request = next(iter(self._unseen))
            if self._sent[request].number > report.submits_seen:
                break
            self._unseen_tokens -= self._unseen.pop(request)

    def dispatch(self, request: Request, hit_tokens: int, at_ns: Ns) -> int:
        """Count a dispatch, of whose prompt `hit_tokens` are taken to be cached; return its number."""
        self.number += 1
        uncached = 0 if isinstance(request, DiffusionRequest) else max(0, request.prompt_tokens - hit_tokens)
        sent = Sent(self.number, uncached, expected_output(request), at_ns)
        self._sent[request.id] = sent
        self._unseen[request.id] = uncached
        self._unseen_tokens += uncached
        self.uncached_in_flight += uncached
        self.output_tokens_expected += sent.output_tokens
        return self.number

    def begun(self, request: RequestId) -> Ns | None:
        """Its first token came: return when it was dispatched, once."""
        sent = self._sent.get(request)
        if sent is None or sent.has_begun:
            return None
        sent.has_begun = True
        self.uncached_in_flight -= sent.uncached_tokens
        return sent.at_ns

    def adopt(self, request: Request) -> None:
        """The request moved here from another replica; reports already count it."""
        sent = Sent(self.number, 0, expected_output(request), self.now_ns, has_begun=True)
        self._sent[request.id] = sent
        self.output_tokens_expected += sent.output_tokens

    def end(self, request: RequestId) -> None:
        """A dispatch is over or moved away."""
        sent = self._sent.pop(request, None)
        if sent is None:
            return
        self.output_tokens_expected -= sent.output_tokens
        if not sent.has_begun:
            self.uncached_in_flight -= sent.uncached_tokens
        if request in self._unseen:
            self._unseen_tokens -= self._unseen.pop(request)
        else:
            self._ended += 1

    def check(self) -> bool:
        """True when the incremental sums match their parts."""
        sent = self._sent.values()
        return (
            self._unseen_tokens == sum(self._unseen.values())
            and self.output_tokens_expected == sum(item.output_tokens for item in sent)
            and self.uncached_in_flight == sum(item.uncached_tokens for item in sent if not item.has_begun)
        )


def share_hits(replicas: Sequence[Replica]) -> None:
    """Set `distinct_hits`: a prefix that more than half of them hold, such as a system prompt, speaks for none of them.

    production-stack#957: whoever served it first otherwise gets everything.
    """
    if not replicas:
        return
    shared = sorted((replica.hit_tokens for replica in replicas), reverse=True)[len(replicas) // 2]
    for replica in replicas:
        replica.distinct_hits = max(0, replica.hit_tokens - shared)
