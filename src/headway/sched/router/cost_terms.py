"""The parts of a replica's cost for one request, all in seconds (A2). What is added here is what evidence shows.

The queue and the prefill are what the request itself waits; `others` is the delay that its prefill and its batch row
put on the requests that are there already: without it a hit on a crowded replica looks as cheap as on an idle one
(LMetric, arXiv 2603.15202, multiplies the two for the same reason). A second of decoding weighs less than one before
the first token: an answer has the whole of its TPOT budget to make up for it.
"""

from typing import Annotated, Final

import msgspec

from headway.core.ids import TenantId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S
from headway.sched.router.presence import Presence
from headway.sched.router.protocol import ReplicaView

PARTS: Final = ("queue", "prefill", "pull", "decode", "others", "kv", "slo", "tenant", "topology", "adapter")
Parts = tuple[float, float, float, float, float, float, float, float, float, float]

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class KvPull(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas fetch each other's KV by themselves (a shared KV store behind them). Headway's own engines do not."""

    bytes_per_token: Positive  # KV of one token, all layers
    bytes_per_s: Positive = 10e9  # of the link between replicas
    fixed_s: NotNegative = 0.03  # of every pull, however small
    tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 256  # fewer are recomputed


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a second of each kind counts, and what is believed of a replica that nobody has heard of."""

    decode: NotNegative = 0.3  # a second of decoding, against one before the first token
    others: NotNegative = 0.3  # a second of delay to each request that is there already
    slo: NotNegative = 0.5  # a second past the request's own TTFT, TPOT or end-to-end SLO
    spread: NotNegative = 0.5  # standard deviations added to a queue that is known from an old report
    tenant: NotNegative = 0.5  # of a decode, per request that the tenant has there above its even share
    other_host_s: NotNegative = 0.002  # to a replica on another machine than `host`
    host: str = ""  # this front's machine, as reports name it; empty: replicas everywhere are equal
    adapter_load_s: NotNegative = 0.5  # until a LoRA adapter that is not loaded can be used
    prefill_tokens_per_s: Positive = 8000.0  # while no replica's rate is known
    step_ms: Positive = 30.0  # while no step time is known
    row_share: NotNegative = 0.01  # of a step, per further row, while that is not learned
    output_tokens: Annotated[int, msgspec.Meta(ge=1)] = 200  # of a request whose length nobody predicted
    kv_pull: KvPull | None = None  # unset: a prefix that another replica holds is computed again


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One request, as far as its cost depends on it."""

    prompt: int
    output: int
    best_hit: int  # most prompt tokens that any replica holds
    token_s: float  # per prompt token where no rate is known
    step_s: float  # where no step time is known
    ttft_s: float | None  # left until the deadline
    e2e_s: float | None
    tpot_s: float | None
    has_slo: bool
    tenant: TenantId
    tenant_share: float  # own dispatches of this tenant per replica
    crowd: float  # share of own dispatches that other tenants have; 0: nobody to protect
    lora: str | None
    homes: frozenset[str]  # replicas where this front lets the adapter be loaded


def sizes(request: Request, weights: Weights) -> tuple[int, int]:
    """Prompt tokens, and output tokens to plan with; a denoise step counts as an output token."""
    if isinstance(request, DiffusionRequest):
        return 0, request.steps
    predicted = request.output_tokens_predicted
    if predicted is None:
        predicted = request.max_tokens if request.ignores_eos else weights.output_tokens
    return request.prompt_tokens, min(predicted, request.max_tokens)


def step_line(view: ReplicaView, ask: Ask, weights: Weights) -> tuple[float, float]:
    """Seconds of a step there without its rows, and of a row with this request's KV."""
    context = ask.prompt + 0.5 * ask.output
    cost = view.step_cost
    if cost is not None:
        base_ns, row_ns = cost.base_ns + cost.kv_ns * view.kv_tokens, cost.kv_ns * context
        if not cost.is_roofline:
            row_ns += cost.row_ns
        elif cost.row_ns * (view.requests + 1) > base_ns:  # rows compute longer than weights and KV are read
            base_ns, row_ns = 0.0, cost.row_ns
        return base_ns / NS_PER_S, row_ns / NS_PER_S
    step = view.step_ns / NS_PER_S if view.step_ns else ask.step_s
    row = step * weights.row_share
    return max(0.0, step - row * view.requests), row


def parts(view: ReplicaView, presence: Presence | None, ask: Ask, weights: Weights, level: float) -> Parts:
    """The cost of one replica. `level`: how many standard deviations of its queue to add."""
    rate = view.prefill_tokens_per_s
    token_s = 1.0 / rate if rate > 0 else ask.token_s
    base_s, row_s = step_line(view, ask, weights)
    there = view.requests
    queue_s = (view.queued_tokens + level * view.queued_tokens_spread) * token_s
    fresh, pull_s = ask.prompt - view.hit_tokens, 0.0
    pull = weights.kv_pull
    if pull is not None and ask.best_hit - view.hit_tokens >= pull.tokens_min:
        fetched = ask.best_hit - view.hit_tokens
        fetch_s = pull.fixed_s + fetched * pull.bytes_per_token / pull.bytes_per_s
        if fetch_s < fetched * token_s:
            fresh, pull_s = fresh - fetched, fetch_s
    prefill_s = _prefill_s(view, ask.prompt - fresh, fresh, token_s)
    step_s = base_s + row_s * (there + 1)
    decode_s = weights.decode * ask.output * step_s
    others_s = weights.others * there * (prefill_s + ask.output * row_s)
    kv_s = _overflow(view, ask, token_s, step_s) if view.kv_tokens_total else 0.0
    slo_s = _late(ask, queue_s + prefill_s + pull_s, step_s, weights) if ask.has_slo else 0.0
    tenant_s = topology_s = adapter_s = 0.0
    if ask.crowd and presence is not None:
        above = presence.by_tenant.get(ask.tenant, 0) - ask.tenant_share
        tenant_s = weights.tenant * ask.crowd * max(0.0, above) * decode_s
    if weights.host and view.host and view.host != weights.host:
        topology_s = weights.other_host_s
    if ask.lora is not None and ask.lora not in view.adapters:
        adapter_s = 0.0 if view.id in ask.homes else weights.adapter_load_s
    return queue_s, prefill_s, pull_s, decode_s, others_s, kv_s, slo_s, tenant_s, topology_s, adapter_s


def _prefill_s(view: ReplicaView, start: int, count: int, token_s: float) -> float:
    """`count` prompt tokens after `start`: at the usual rate, or by their attention pairs if that is more."""
    cost = view.step_cost
    if cost is None or not cost.pair_ns:
        return count * token_s
    return max(count * token_s, (cost.token_ns * count + cost.pair_ns * count * (start + 0.5 * count)) / NS_PER_S)


def _overflow(view: ReplicaView, ask: Ask, token_s: float, step_s: float) -> float:
    """What it costs when KV does not fit: waiting until enough rows end, or computing a preempted row again."""
    total = view.kv_tokens_total
    coming = view.queued_tokens + 0.5 * view.output_tokens_expected + ask.prompt - view.hit_tokens + ask.output
    over = view.kv_usage * total + coming - total
    if over <= 0:
        return 0.0
    return over * token_s * (1 + view.requests) + over / total * ask.output * step_s


def _late(ask: Ask, first_s: float, step_s: float, weights: Weights) -> float:
    late_s = 0.0
    if ask.ttft_s is not None:
        late_s += max(0.0, first_s - ask.ttft_s)
    if ask.tpot_s is not None:
        late_s += ask.output * max(0.0, step_s - ask.tpot_s)
    if ask.e2e_s is not None:
        late_s += max(0.0, first_s + ask.output * step_s - ask.e2e_s)
    return weights.slo * late_s
