"""SMetric (arXiv 2607.08565; vllm-project/router, smetric.rs): a session stays while its replica meets the SLO."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.request import Request
from headway.core.units import Ns, s_from_ns
from headway.sched.router.policies._terms import chosen_first, hashes_of, prompt_of
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left, ReplicaView, Scored

_SAMPLES: Final = 64  # rates that a replica's rate is taken from
_SAMPLES_MIN: Final = 8  # fewer say nothing
_QUANTILE: Final = 0.9  # the requests that queued least are the fastest; the maximum would be one outlier


class _Prefill(msgspec.Struct):
    """What this front knows of one replica's prefill."""

    samples: deque[float]
    queued: int = 0  # requests without a first token
    queued_cost: float = 0.0  # theirs
    rate: float | None = None  # cost per second; None: too few samples

    def leave(self, cost: float) -> None:
        """One of them has its first token, or is gone."""
        self.queued -= 1
        self.queued_cost = max(0.0, self.queued_cost - cost) if self.queued else 0.0

    def learn(self, rate: float) -> None:
        """Fold in cost over time to first token."""
        self.samples.append(rate)
        if len(self.samples) >= _SAMPLES_MIN:
            self.rate = sorted(self.samples)[int(_QUANTILE * (len(self.samples) - 1) + 0.5)]


class Smetric:
    """First turn: argmin load x requests in flight. Later: the best hit, unless it misses the SLO and another meets it.

    cost = n + n (L - n/2) / L_eq for n new of L prompt tokens; load = cost queued there + own; SLO: load / rate <=
    slack x (base + k x L). The published router reads turns from the chat's messages; here a request is a later turn
    when the whole prompt of an earlier request is its prefix. The replica keeps the turn if it still holds more than
    hit_ratio of that earlier prompt.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hit_tokens", "in_flight", "block_hashes"})
    sees: ClassVar[str] = "predicted prefix hits, own requests without a first token, and the prefill rates they showed"
    good_at: ClassVar[str] = "agent sessions: a session moves only when staying would miss its time to first token"
    blind_spot: ClassVar[str] = "decode: a replica full of long answers looks idle as soon as they have begun"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Published defaults."""

        hit_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5  # of the last turn's prompt that must be cached
        slack: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of the SLO that a session may use up by staying
        ttft_slo_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # whatever the length
        ttft_slo_s_per_1k_tokens: Annotated[float, msgspec.Meta(ge=0)] = 0.0625  # of the prompt
        attention_crossover_tokens: Annotated[float, msgspec.Meta(gt=0)] | None = None  # L_eq; None: linear cost
        prompts_max: Annotated[int, msgspec.Meta(ge=0)] = 100_000  # earlier prompts that are remembered

    def __init__(self, params: Params) -> None:
        self._params = params
        self._open: dict[tuple[RequestId, NodeId], float] = {}  # cost of those without a first token
        self._prefills: dict[NodeId, _Prefill] = {}
        self._prompts: OrderedDict[bytes, int] = OrderedDict()  # last block -> tokens, least recently used first
        self._dispatches = 0

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Put the chosen replica first, the others by load x requests in flight."""
        if not replicas:
            return []
        length = prompt_of(request)
        loads = {r.id: self._queued(r.id) + self._cost(length, r.hit_tokens) for r in replicas}
        meets = {r.id: self._meets(r.id, loads[r.id], length) for r in replicas}
        home = min(replicas, key=lambda r: (-r.hit_tokens, loads[r.id], r.id))
        history = self._history(request)
        stays = (
            history is not None
            and home.hit_tokens > self._params.hit_ratio * history
            and (meets[home.id] or not any(meets.values()))
        )
        kind = "stays" if stays else "balanced"
        scored = [
            Scored(r.id, loads[r.id] * r.in_flight, f"{kind}; load {loads[r.id]:.0f}, {r.in_flight} in flight")
            for r in replicas
        ]
        return chosen_first(home.id if stays else self._balanced(scored), scored)

    def _balanced(self, scored: list[Scored]) -> NodeId:
        least = min(item.score for item in scored)
        tied = sorted(item.replica for item in scored if item.score == least)
        return tied[self._dispatches % len(tied)]

    def _history(self, request: Request) -> int | None:
        """Return the tokens of the longest earlier prompt that is a prefix of this one. O(blocks)."""
        return next((self._prompts[digest] for digest in reversed(hashes_of(request)) if digest in self._prompts), None)

    def _cost(self, length: int, hit: int) -> float:
        new, crossover = max(0, length - hit), self._params.attention_crossover_tokens
        return float(new) if crossover is None else new + new * (length - new / 2) / crossover

    def _queued(self, replica: NodeId) -> float:
        known = self._prefills.get(replica)
        return 0.0 if known is None else known.queued_cost

    def _meets(self, replica: NodeId, load: float, length: int) -> bool:
        """True while no rate is known, as published."""
        p, known = self._params, self._prefills.get(replica)
        budget_s = p.slack * (p.ttft_slo_s + p.ttft_slo_s_per_1k_tokens * length / 1000)
        return known is None or known.rate is None or load / known.rate <= budget_s

    def observe(self, event: Learned) -> None:
        """Count queued cost, learn rates, remember prompts."""
        match event:
            case Dispatched():
                self._begin(event)
            case FirstToken():
                cost = self._leave(event.request, event.replica)
                if cost and event.since_dispatch_ns > 0:
                    self._prefills[event.replica].learn(cost / s_from_ns(event.since_dispatch_ns))
            case Ended():
                self._leave(event.request, event.replica)
            case Left():
                self._prefills.pop(event.replica, None)
                for key in [key for key in self._open if key[1] == event.replica]:
                    del self._open[key]

    def _begin(self, event: Dispatched) -> None:
        self._dispatches += 1
        request, key = event.request, (event.request.id, event.replica)
        self._leave(*key)
        cost = self._cost(prompt_of(request), event.hit_tokens)
        known = self._prefills.setdefault(event.replica, _Prefill(deque(maxlen=_SAMPLES)))
        known.queued += 1
        known.queued_cost += cost
        self._open[key] = cost
        if hashes := hashes_of(request):
            self._prompts[hashes[-1]] = prompt_of(request)
            self._prompts.move_to_end(hashes[-1])
            while len(self._prompts) > self._params.prompts_max:
                self._prompts.popitem(last=False)

    def _leave(self, request: RequestId, replica: NodeId) -> float | None:
        cost = self._open.pop((request, replica), None)
        if cost is not None:
            self._prefills[replica].leave(cost)
        return cost
