"""Send each request where it costs least: everything in seconds, per replica, with the delay it puts on others."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec

from headway.core.draw import draw_u64
from headway.core.ids import NodeId
from headway.core.reports import StepCoefficients
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.sched.router.affinity import Sessions
from headway.sched.router.cost_terms import PARTS, Ask, Parts, Weights, denoise_parts, parts, sizes
from headway.sched.router.policies._terms import holder_of_most
from headway.sched.router.presence import Flights
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left, ReplicaView, Scored

_UNIT: Final = 1.0 / (1 << 53)
_MIX: Final = 0x9E3779B97F4A7C15
_WORDED: Final = 2  # best candidates whose parts are put into words: evidence wants the chosen one
_MASK: Final = (1 << 64) - 1
_PULL: Final = PARTS.index("pull")


class CostAware:
    """Sums queue, prefill or KV pull, decode, delay to others and penalties; the lowest sum wins."""

    needs: ClassVar[frozenset[str]] = frozenset(
        {"queued_tokens", "queued_tokens_spread", "requests", "hit_tokens", "kv_tokens", "kv_usage", "step_ns"}
    )
    sees: ClassVar[str] = (
        "per replica: queued prefill, predicted hits, batch, KV, learned or reported rates, age, adapters, host; "
        "where the session is; what each tenant has there"
    )
    good_at: ClassVar[str] = (
        "mixed lengths with shared prefixes up to and past the knee, unequal replicas, stale reports"
    )
    blind_spot: ClassVar[str] = "arrivals that are still to come: it does not keep a replica free for them"

    class Params(Weights, frozen=True, forbid_unknown_fields=True):
        """Weights of the parts, and when a session moves or an estimate is tried again."""

        margin_s: Annotated[float, msgspec.Meta(ge=0)] = 0.05  # a session moves for a gain above this
        margin_ratio: Annotated[float, msgspec.Meta(ge=0)] = 0.1  # and above this share of what staying costs
        dwell_s: Annotated[float, msgspec.Meta(ge=0)] = 2.0  # a session that came stays this long at least
        sessions_max: Annotated[int, msgspec.Meta(ge=1)] = 100_000  # remembered; the longest unseen goes
        adapter_replicas_max: Annotated[int, msgspec.Meta(ge=1)] = 4  # that one LoRA adapter is loaded on
        explore: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01  # share of requests that try what was not tried
        explore_s: Annotated[float, msgspec.Meta(ge=0)] = 0.1  # that such a try may cost
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0  # part of every keyed draw

    def __init__(self, params: Params) -> None:
        self._params = params
        self._dwell_ns = ns_from_s(params.dwell_s)
        self._sessions = Sessions(params.sessions_max)
        self._flights = Flights()
        self._homes: dict[str, OrderedDict[NodeId, None]] = {}  # by adapter: where it is taken to be loaded

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by cost in seconds; a session's replica ahead of gains too small to move for."""
        views = self._allowed(request, replicas)
        ask = self._ask(request, views, at_ns)
        weights, at = self._params, self._flights.at
        draw = draw_u64(weights.seed, request.id, _attempt(request), 0)
        is_denoise = isinstance(request, DiffusionRequest)
        costs: list[tuple[float, NodeId, Parts]] = []
        for view in views:
            level = _level(draw, view.id, weights.spread) if view.queued_tokens_spread else 0.0
            if is_denoise:
                found = self._parts(request, view, ask, level)
            else:
                found = parts(view, at(view.id), ask, weights, level)
            costs.append((sum(found), view.id, found))
        costs.sort()
        ranked = [
            Scored(replica, cost, _words(found) if place < _WORDED else "")
            for place, (cost, replica, found) in enumerate(costs)
        ]
        if ask.best_hit:
            ranked = _told_to_pull(ranked, costs, holder_of_most(views))
        if len(ranked) > 1:
            ranked = self._stay(request, ranked, at_ns) or self._explore(draw, ranked) or ranked
        return ranked

    def explain(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> dict[NodeId, dict[str, float]]:
        """Return the parts of every allowed replica's cost, in seconds; they add up to the cost before a session's
        margin or a try."""
        views = self._allowed(request, replicas)
        ask = self._ask(request, views, at_ns)
        draw = draw_u64(self._params.seed, request.id, _attempt(request), 0)
        out: dict[NodeId, dict[str, float]] = {}
        for view in views:
            level = _level(draw, view.id, self._params.spread) if view.queued_tokens_spread else 0.0
            found = self._parts(request, view, ask, level)
            out[view.id] = dict(zip(PARTS, found, strict=True))
        return out

    def observe(self, event: Learned) -> None:
        """Learn where sessions and adapters are, and what each tenant has where."""
        match event:
            case Dispatched():
                self._dispatched(event)
            case FirstToken():
                self._began(event)
            case Ended():
                self._flights.ended(event.request, event.replica, event.at_ns)
            case Left():
                self._left(event.replica)

    # The question

    def _allowed(self, request: Request, replicas: Sequence[ReplicaView]) -> Sequence[ReplicaView]:
        """All, or the bounded set of replicas that an adapter is or will be loaded on (llm-d-router#709)."""
        lora = None if isinstance(request, DiffusionRequest) else request.lora
        if lora is None:
            return replicas
        homes = self._homes.get(lora, ())
        holders = [view for view in replicas if lora in view.adapters or view.id in homes]
        return holders if len(holders) >= self._params.adapter_replicas_max else replicas

    def _parts(self, request: Request, view: ReplicaView, ask: Ask, level: float) -> Parts:
        told = denoise_parts(view) if isinstance(request, DiffusionRequest) else None
        return told or parts(view, self._flights.at(view.id), ask, self._params, level)

    def _ask(self, request: Request, views: Sequence[ReplicaView], at_ns: Ns) -> Ask:
        weights = self._params
        prompt, output = sizes(request, weights)
        slo = request.slo
        lora = None if isinstance(request, DiffusionRequest) else request.lora
        token_s, step_s, step_cost = 0.0, 0.0, None
        if any(not view.prefill_tokens_per_s or view.step_cost is None for view in views):
            token_s = 1.0 / _typical([view.prefill_tokens_per_s for view in views], weights.prefill_tokens_per_s)
            step_s = _typical([_step_s(view) for view in views], weights.step_ms / 1e3)
            step_cost = _typical_cost(views)
        own, all_own = self._flights.by_tenant.get(request.tenant, 0), len(self._flights)
        return Ask(
            prompt=prompt,
            output=output,
            context=prompt + 0.5 * output,
            best_hit=0 if weights.kv_pull is None else max((view.hit_tokens for view in views), default=0),
            token_s=token_s,
            step_s=step_s,
            step_cost=step_cost,
            ttft_s=None if slo.ttft_deadline_ns is None else (slo.ttft_deadline_ns - at_ns) / NS_PER_S,
            e2e_s=None if slo.e2e_deadline_ns is None else (slo.e2e_deadline_ns - at_ns) / NS_PER_S,
            tpot_s=None if slo.tpot_ns is None else slo.tpot_ns / NS_PER_S,
            has_slo=slo.ttft_deadline_ns is not None or slo.e2e_deadline_ns is not None or slo.tpot_ns is not None,
            tenant=request.tenant,
            tenant_share=own / len(views) if views else 0.0,
            crowd=1.0 - own / all_own if all_own else 0.0,
            lora=lora,
            homes=frozenset(self._homes.get(lora, ())) if lora is not None else frozenset(),
        )

    # What changes the order of costs

    def _stay(self, request: Request, ranked: list[Scored], at_ns: Ns) -> list[Scored] | None:
        """Hysteresis (A4): the bound replica first, unless another is better by a margin and the dwell is over."""
        if isinstance(request, DiffusionRequest):
            return None
        bound = self._sessions.of(request.tenant, request.session)
        place = -1 if bound is None else next((i for i, s in enumerate(ranked) if s.replica == bound.replica), -1)
        if bound is None or place < 0:
            return None
        home, best = ranked[place], ranked[0]
        margin = max(self._params.margin_s, self._params.margin_ratio * home.score)
        is_young = at_ns - bound.since_ns < self._dwell_ns
        if place and home.score - best.score > margin and not is_young:
            return ranked
        score = min(home.score, best.score)
        kept = msgspec.structs.replace(home, score=score, reason=f"its session is here; {home.reason}")
        return [kept, *ranked[:place], *ranked[place + 1 :]]

    def _explore(self, draw: int, ranked: list[Scored]) -> list[Scored] | None:
        """Now and then the replica that was not heard of for longest goes first, if that costs little."""
        if (draw >> 11) * _UNIT >= self._params.explore:
            return None
        limit = ranked[0].score + self._params.explore_s
        near = [item for item in ranked if item.score <= limit]
        tried = min(near, key=lambda item: (self._flights.heard_ns(item.replica), item.replica))
        if tried is ranked[0]:
            return None
        reason = f"a try: not heard of for longest; {tried.reason}"
        first = msgspec.structs.replace(tried, score=ranked[0].score, reason=reason)
        return [first, *(item for item in ranked if item is not tried)]

    # What is learned

    def _dispatched(self, event: Dispatched) -> None:
        request, replica = event.request, event.replica
        self._flights.sent(request, replica)
        if not isinstance(request, DiffusionRequest) and request.lora is not None:
            homes = self._homes.setdefault(request.lora, OrderedDict())
            homes[replica] = None
            homes.move_to_end(replica)
            while len(homes) > self._params.adapter_replicas_max:
                homes.popitem(last=False)

    def _began(self, event: FirstToken) -> None:
        flight = self._flights.began(event.request, event.replica, event.at_ns)
        if flight is not None and flight.session is not None:
            self._sessions.bind(flight.tenant, flight.session, event.replica, event.at_ns)

    def _left(self, replica: NodeId) -> None:
        self._flights.left(replica)
        self._sessions.left(replica)
        for lora in list(self._homes):
            self._homes[lora].pop(replica, None)
            if not self._homes[lora]:
                del self._homes[lora]


def _told_to_pull(
    ranked: list[Scored], costs: list[tuple[float, NodeId, Parts]], most: tuple[NodeId | None, int]
) -> list[Scored]:
    """Those whose cost counts a pull are to make it, from whoever holds most."""
    return [
        Scored(item.replica, item.score, item.reason, *most) if found[_PULL] else item
        for item, (_cost, _id, found) in zip(ranked, costs, strict=True)
    ]


def _words(found: Parts) -> str:
    return " + ".join([f"{name} {value:.3f}" for name, value in zip(PARTS, found, strict=True) if value]) + " s"


def _typical(values: list[float], prior: float) -> float:
    """What is taken for a replica that nobody knows: the median of those that are known."""
    known = sorted(value for value in values if value > 0)
    return known[len(known) // 2] if known else prior


def _typical_cost(views: Sequence[ReplicaView]) -> StepCoefficients | None:
    """The median of what is known, by the step of an empty batch: who was never heard of is judged as they are.

    Their last steps would be no measure of it: these carry prompts, and against them whoever answered first looks three
    times as quick as an idle replica, and gets everything (16 x A10, 20 requests/s: 26 of 40 requests on two replicas).
    """
    known = sorted((view.step_cost for view in views if view.step_cost is not None), key=lambda cost: cost.base_ns)
    return known[len(known) // 2] if known else None


def _step_s(view: ReplicaView) -> float:
    return (view.step_ns or (view.step_cost.base_ns if view.step_cost else 0.0)) / NS_PER_S


def _attempt(request: Request) -> int:
    return 0 if isinstance(request, DiffusionRequest) else request.attempts


def _level(draw: int, replica: str, spread: float) -> float:
    """Which quantile of an uncertain queue is taken: `spread` on average, other for each request, so that fronts that
    saw the same report at the same time do not all take the same replica (aibrix#646)."""
    mixed = ((draw ^ int.from_bytes(replica[-8:].encode()[-8:], "little")) * _MIX) & _MASK
    return spread + 2.0 * ((mixed >> 11) * _UNIT) - 1.0
