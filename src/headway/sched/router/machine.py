"""Chooses the replica, or the prefill/decode pair, of a request: forecast first, commit once admission agreed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

from headway.core.decisions import Candidate
from headway.core.errors import ConfigError, InvariantError
from headway.core.ids import ModelId, NodeId
from headway.core.reports import ReplicaReport
from headway.core.request import DiffusionRequest, LlmRequest, Request
from headway.core.units import NS_PER_S, Ns, ns_from_ms, s_from_ns
from headway.sched.router.cost_terms import prefill_s
from headway.sched.router.fleet_view import Replica, expected_output, share_hits
from headway.sched.router.prefix_index import PrefixIndex
from headway.sched.router.prefix_tally import PrefixTally
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Left, RoutingPolicy, Scored
from headway.sched.router.roles import role_of
from headway.sched.router.work import denoise_candidate, kind_of


class PdPools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas that prefill for others, and those that take over. Empty: every replica does both."""

    prefill: tuple[NodeId, ...] = ()  # replica ids, such as rep-0
    decode: tuple[NodeId, ...] = ()  # replica ids, such as rep-1
    prompt_tokens_min: Annotated[int, msgspec.Meta(ge=0)] = 1  # shorter prompts stay in the decode pool

    def __post_init__(self) -> None:
        if bool(self.prefill) != bool(self.decode):
            raise ConfigError("pools.prefill and pools.decode need each other: name replicas for both, or for neither")


class Room(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much work a replica's own queue may hold (late binding).

    Little of it keeps order and fairness over the whole fleet, at the price of locality: who waits at the front goes to
    whichever replica has room first. Past the knee of the Mooncake trace 50 ms keep 52 % of requests within their SLO,
    1 s 61 %, 10 s 88 %, 30 s and more 90 %.
    """

    engine_queue_ms: Annotated[float, msgspec.Meta(ge=0)] = 30_000.0  # may wait in a replica, the rest at the front
    cold_requests: Annotated[int, msgspec.Meta(ge=1)] = 64  # waiting requests while no rate is known


class Choices(msgspec.Struct, frozen=True):
    """The routing policy, and those of single models that have their own."""

    policy: RoutingPolicy
    by_model: Mapping[ModelId, RoutingPolicy] = {}  # msgspec copies the default

    def of(self, model: ModelId) -> RoutingPolicy:
        """Return the policy that routes a model."""
        return self.by_model.get(model, self.policy)

    def name_of(self, model: ModelId) -> str:
        """Return the policy's class in words."""
        return type(self.of(model)).__name__


class ReplicaGuard(Protocol):
    """Which replicas may be candidates now (`sched/fleet/guard.py`)."""

    @property
    def is_quiet(self) -> bool:
        """True while every replica is usable."""
        ...

    def is_usable(self, node: NodeId, at_ns: Ns) -> bool:
        """True when health and breaker let it be a candidate."""
        ...

    def last_resort(self, nodes: Sequence[NodeId], at_ns: Ns) -> NodeId | None:
        """Of replicas that are all unusable, the one that may be tried."""
        ...


class Router:
    """The fleet as this front sees it, and the routing policies."""

    def __init__(
        self,
        choices: Choices,
        pools: PdPools,
        room: Room,
        index: PrefixIndex,
        guard: ReplicaGuard | None = None,
    ) -> None:
        """`guard`: health and breakers of the replicas; without one they all pass."""
        self.replicas: dict[NodeId, Replica] = {}
        self.index, self.tally = index, PrefixTally()
        self.choices, self.guard, self._pools, self._room = choices, guard, pools, room
        self._queue_ns_max = ns_from_ms(room.engine_queue_ms)

    def join(self, node: NodeId, incarnation: int, at_ns: Ns) -> bool:
        """A replica is there; False when it is known already."""
        known = self.replicas.get(node)
        if known is not None and known.incarnation >= incarnation:
            return False
        self.replicas[node] = Replica(node, incarnation, at_ns)
        return True

    def lose(self, node: NodeId, incarnation: int, at_ns: Ns) -> bool:
        """A replica is gone; False when a newer incarnation has already replaced it."""
        known = self.replicas.get(node)
        if known is None or known.incarnation > incarnation:
            return False
        del self.replicas[node]
        self.index.left(node)
        for policy in self._policies():
            policy.observe(Left(at_ns, node))
        return True

    def _policies(self) -> list[RoutingPolicy]:
        return [self.choices.policy, *self.choices.by_model.values()]

    def hear(self, report: ReplicaReport, at_ns: Ns, earlier: Sequence[Ns] = ()) -> None:
        """Fold in a report of a replica that is there, and those at `earlier` times that said the same."""
        replica = self.replicas.get(report.replica)
        if replica is not None and replica.incarnation == report.incarnation:
            replica.hear(report, at_ns, earlier)
            self.index.heard(report)

    def forecast(self, request: Request, at_ns: Ns) -> list[Candidate]:
        """Return candidates, best first, with the seconds to the first token that each is forecast to need."""
        pools = self._pools
        if not isinstance(request, LlmRequest) or not self._is_split(request.model):
            return self._rank(request, (), at_ns)
        if len(request.prompt) < pools.prompt_tokens_min:
            return self._rank(request, pools.decode, at_ns)
        first = self._rank(request, pools.prefill, at_ns)
        second = self._rank(request, pools.decode, at_ns)
        if not second:
            return first
        return [msgspec.structs.replace(candidate, decode=second[0].replica) for candidate in first] or second

    def _is_split(self, model: ModelId) -> bool:
        """True when the model has replicas in the pools; a model that stands in neither is served whole."""
        members = (*self._pools.prefill, *self._pools.decode)
        return any((r := self.replicas.get(node)) is not None and self._serves(r, model, "llm") for node in members)

    def _rank(self, request: Request, pool: tuple[NodeId, ...], at_ns: Ns) -> list[Candidate]:
        usable = self._usable(request, pool, at_ns)
        ranked = self.choices.of(request.model).rank(request, usable, at_ns)
        if isinstance(request, DiffusionRequest):
            there = [(self.replicas[item.replica], item) for item in ranked]
            return [denoise_candidate(replica, item) for replica, item in there]
        prompt, is_hashed = request.prompt_tokens, bool(request.block_tokens)
        return [self._candidate(self.replicas[item.replica], prompt, is_hashed, item) for item in ranked]

    def _usable(self, request: Request, pool: tuple[NodeId, ...], at_ns: Ns) -> list[Replica]:
        """Return the replicas that may take the request, as they look now. An empty pool is the whole fleet."""
        role, model, is_text = role_of(request), request.model, not isinstance(request, DiffusionRequest)
        lora = None if isinstance(request, DiffusionRequest) else request.lora
        kind = kind_of(request)
        there = [
            replica
            for replica in self.replicas.values()
            if (report := replica.report) is not None  # one that joined has said nothing yet
            and report.role == role
            and (report.model == model or model in report.models)
            and (lora is None or _offers(report, lora))
            and not replica.is_draining
            and (not pool or replica.id in pool)
            and (is_text or replica.takes(request, kind))
        ]
        usable = self._let_pass(there, at_ns)
        hits = self.index.hits_all(request)
        for replica in usable:
            replica.look(at_ns)
            replica.hit_tokens = hits.get(replica.id, 0) if hits else 0
            replica.own_work_ns = 0 if is_text else replica.work.own_ns(request, kind)
        share_hits(usable)
        return usable

    def _let_pass(self, there: list[Replica], at_ns: Ns) -> list[Replica]:
        guard = self.guard
        if guard is None or guard.is_quiet or not there:
            return there
        usable = [replica for replica in there if guard.is_usable(replica.id, at_ns)]
        if usable:
            return usable
        resort = guard.last_resort([replica.id for replica in there], at_ns)
        return [] if resort is None else [self.replicas[resort]]

    @staticmethod
    def _serves(replica: Replica, model: str, role: str) -> bool:
        report = replica.report
        if report is None:  # it joined and has said nothing yet
            return False
        return report.role == role and _offers(report, model)

    def can_serve(self, model: str, at_ns: Ns) -> bool:
        """True while a replica of the model, or of the LoRA adapter, may be a candidate. A query."""
        return any(
            replica.report is not None
            and _offers(replica.report, model)
            and not replica.is_draining
            and (self.guard is None or self.guard.is_usable(replica.id, at_ns))
            for replica in self.replicas.values()
        )

    @staticmethod
    def _candidate(replica: Replica, prompt: int, is_hashed: bool, item: Scored) -> Candidate:
        hit, rate = max(replica.hit_tokens, item.pull_tokens), replica.prefill_tokens_per_s
        hits = replica.hit_tokens if is_hashed else None
        if rate <= 0 or replica.report is None:
            reason = item.reason or "no rate learned"
            return Candidate(replica.id, 0.0, 0.0, None, reason, item.score, hits, item.pull_from, item.pull_tokens)
        confidence = 1.0 / (1.0 + replica.age_ns / NS_PER_S)
        seconds = round(replica.queued_tokens / rate * NS_PER_S) / NS_PER_S + prefill_s(replica, prompt, hit)
        pull = item.pull_from, item.pull_tokens
        return Candidate(replica.id, seconds, confidence, None, item.reason, item.score, hits, *pull)

    def decode_seconds(self, candidate: Candidate, request: Request) -> float:
        """Seconds from the first to the last expected token there; 0 while no step time is known."""
        replica = self.replicas[NodeId(candidate.decode or candidate.replica)]
        return s_from_ns(replica.step_ns) * max(0, expected_output(request) - 1)

    def queue_seconds(self, candidates: Sequence[Candidate], tokens: int) -> float:
        """Seconds until the candidates together have prefilled `tokens`; 0 while no rate is known."""
        rate = sum(self.replicas[NodeId(candidate.replica)].prefill_tokens_per_s for candidate in candidates)
        return tokens / rate if rate > 0 else 0.0

    def has_room(self, candidate: Candidate) -> bool:
        """True when the replica's own queue may take one more; an empty queue always may.

        An upstream's batch is its own affair: what it was sent since its last report runs, unless it says that some
        wait. An answer in one piece begins when it ends, so that prompts without a first token say nothing of a queue
        there; it refuses when it is full.
        """
        replica = self.replicas[NodeId(candidate.replica)]
        if replica.now_ns < replica.full_until_ns:
            return False
        queue_ns, report = replica.queue_ns, replica.report
        waiting = report.waiting if report is not None and report.role == "upstream" else replica.waiting
        if waiting == 0:
            return True
        if queue_ns is None:
            return waiting < self._room.cold_requests
        return queue_ns <= self._queue_ns_max

    def commit(self, request: Request, node: NodeId, at_ns: Ns, pull_tokens: int = 0) -> int:
        """The request goes to `node`, which is to fetch so many tokens of its prompt; return the dispatch's number."""
        hits = max(self.index.hits(request, node), pull_tokens)
        self.choices.of(request.model).observe(Dispatched(at_ns, request, node, hits))
        self.index.dispatched(request, node)
        self.tally.dispatched(request)
        return self.replicas[node].dispatch(request, hits, at_ns)

    def begun(self, request: Request, node: NodeId, cached_tokens: int | None, at_ns: Ns) -> None:
        """The first token of a dispatch came; later ones change nothing."""
        replica = self.replicas.get(node)
        sent_ns = None if replica is None else replica.begun(request.id, cached_tokens, at_ns)
        if sent_ns is not None:
            self.index.begun(request, node)
            self.told_cached(request, node, cached_tokens)
            learned = FirstToken(at_ns, request.id, node, at_ns - sent_ns, cached_tokens)
            self.choices.of(request.model).observe(learned)

    def told_cached(self, request: Request, node: NodeId, cached_tokens: int | None) -> None:
        """The replica said how much of the prompt it had cached: with the first token, or an upstream at the end."""
        replica = self.replicas.get(node)
        predicted = None if replica is None else replica.predicted(request.id)
        if predicted is not None and cached_tokens is not None:
            self.tally.told(request.model, predicted, cached_tokens)

    def move(self, request: Request, source: NodeId, destination: NodeId, at_ns: Ns) -> None:
        """The request changed its owner: the source has computed its prompt, whoever tells of the first token."""
        self.index.begun(request, source)
        self.end(request, source, 0, at_ns)
        if destination in self.replicas:
            self.replicas[destination].adopt(request)

    def refused(self, node: NodeId, until_ns: Ns, *, is_told: bool) -> None:
        """The replica is full; its next report ends that sooner unless it named the time itself."""
        if node in self.replicas:
            self.replicas[node].refused(until_ns, is_told=is_told)

    def end(self, request: Request, node: NodeId, output_tokens: int, at_ns: Ns) -> None:
        """A dispatch to `node` is over."""
        if node in self.replicas:
            self.index.ended(request.id, node)
            self.replicas[node].end(request.id, output_tokens, at_ns)
            self.choices.of(request.model).observe(Ended(at_ns, request.id, node, output_tokens))

    def check(self) -> None:
        """Raise InvariantError unless the incremental sums match their parts."""
        for replica in self.replicas.values():
            if not replica.check():
                raise InvariantError(f"replica {replica.id}: unseen or expected tokens do not match the dispatches")


def _offers(report: ReplicaReport, name: str) -> bool:
    return report.model == name or name in report.models
