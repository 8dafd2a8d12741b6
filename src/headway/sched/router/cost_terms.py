"""The parts of a replica's cost for one request, all in seconds (A2). What is added here is what evidence shows.

The queue and the prefill are what the request itself waits; `others` is the delay that its prefill and its batch row
put on the requests that are there already: without it a hit on a crowded replica looks as cheap as on an idle one
(LMetric, arXiv 2603.15202, multiplies the two for the same reason). A second of decoding weighs less than one before
the first token: an answer has the whole of its TPOT budget to make up for it.
"""

from typing import Annotated, Final

import msgspec

from headway.core.ids import TenantId
from headway.core.reports import StepCoefficients
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S
from headway.sched.router.presence import Presence
from headway.sched.router.protocol import ReplicaView

PARTS: Final = ("queue", "prefill", "pull", "decode", "others", "kv", "slo", "tenant", "topology", "adapter")
Parts = tuple[float, float, float, float, float, float, float, float, float, float]

_S: Final = 1.0 / NS_PER_S  # seconds per ns

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class KvPull(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What fetching a prefix from another replica costs. Headway's replicas fetch it when told, as here; upstreams by
    themselves, where a shared KV store is behind them."""

    bytes_per_token: Positive  # KV of one token, all layers
    bytes_per_s: Positive = 10e9  # of the link between replicas
    fixed_s: NotNegative = 0.03  # of every pull, however small
    tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 256  # fewer are recomputed


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a second of each kind counts, and what is believed of a replica that nobody has heard of."""

    decode: NotNegative = 0.1  # a second of decoding, against one before the first token; its estimate is the noisy one
    others: NotNegative = 0.3  # a second of delay to each request that is there already
    slo: NotNegative = 1.0  # seconds that a missed SLO of the request is worth, TTFT, TPOT or end to end
    slo_ramp_s: Positive = 1.0  # predicted lateness from which a miss is certain
    late: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1  # a second of waiting past the TTFT deadline, against before
    spread: NotNegative = 0.5  # standard deviations added to a queue that is known from an old report
    tenant: NotNegative = 0.1  # of a decode, per request that the tenant has there above its even share
    other_host_s: NotNegative = 0.002  # to a replica on another machine than `host`
    host: str = ""  # this front's machine, as reports name it; empty: replicas everywhere are equal
    adapter_load_s: NotNegative = 0.5  # until a LoRA adapter that is not loaded can be used
    prefill_tokens_per_s: Positive = 8000.0  # while no replica's rate is known
    step_ms: Positive = 30.0  # while no step time is known
    row_share: NotNegative = 0.01  # of a step, per further row, while that is not learned
    output_tokens: Annotated[int, msgspec.Meta(ge=1)] = 200  # of a request whose length nobody predicted
    kv_pull: KvPull | None = None  # unset: what another replica holds is computed again


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One request, as far as its cost depends on it."""

    prompt: int
    output: int
    context: float  # tokens of KV that a row of it holds on average
    best_hit: int  # most prompt tokens that any replica holds
    token_s: float  # per prompt token where no rate is known
    step_s: float  # where no step time is known
    step_cost: StepCoefficients | None  # taken for a replica that was never heard of, where others' is known
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


def parts(view: ReplicaView, presence: Presence | None, ask: Ask, weights: Weights, level: float) -> Parts:
    """The cost of one replica. `level`: how many standard deviations of its queue to add.

    It runs for every replica of every forecast: terms that most requests do not have cost one comparison each.
    """
    rate, cost, there, hit = view.prefill_tokens_per_s, view.step_cost, view.requests, view.hit_tokens
    prompt, output = ask.prompt, ask.output
    if cost is None and not view.step_ns:
        cost = ask.step_cost
    token_s = 1.0 / rate if rate > 0.0 else ask.token_s
    queue_s = view.queued_tokens * token_s
    if level:
        queue_s += level * view.queued_tokens_spread * token_s
    fresh, pull_s = prompt - hit, 0.0
    if ask.best_hit > hit:
        fresh, pull_s = _pulled(fresh, ask.best_hit - hit, token_s, weights.kv_pull)
    prefill_s = fresh * token_s
    if cost is None:
        base_s, row_s = _unknown_step(view, ask, weights)
    else:
        row_ns, base_ns = cost.kv_ns * ask.context, cost.base_ns + cost.kv_ns * view.kv_tokens
        if not cost.is_roofline:
            row_ns += cost.row_ns
        elif cost.row_ns * (there + 1) > base_ns:  # rows compute longer than weights and KV are read
            base_ns, row_ns = 0.0, cost.row_ns
        base_s, row_s = base_ns * _S, row_ns * _S
        if cost.pair_ns:  # long prompts take longer than the usual rate says: attention is quadratic
            pairs_s = fresh * (cost.token_ns + cost.pair_ns * (prompt - 0.5 * fresh)) * _S
            prefill_s = pairs_s if pairs_s > prefill_s else prefill_s
    step_s = base_s + row_s * (there + 1)
    others_s = weights.others * there * (prefill_s + output * row_s)
    kv_s = _overflow(view, ask, token_s, step_s) if view.kv_tokens_total else 0.0
    slo_s = _late(ask, queue_s + prefill_s + pull_s, step_s, weights) if ask.has_slo else 0.0
    tenant_s = topology_s = adapter_s = 0.0
    if ask.crowd and presence is not None:
        above = presence.by_tenant.get(ask.tenant, 0) - ask.tenant_share
        tenant_s = weights.tenant * ask.crowd * max(0.0, above) * output * step_s
    if weights.host and view.host and view.host != weights.host:
        topology_s = weights.other_host_s
    if ask.lora is not None and ask.lora not in view.adapters and view.id not in ask.homes:
        adapter_s = weights.adapter_load_s
    decode_s = weights.decode * output * step_s
    return queue_s, prefill_s, pull_s, decode_s, others_s, kv_s, slo_s, tenant_s, topology_s, adapter_s


def prefill_s(view: ReplicaView, prompt: int, hit: int) -> float:
    """Seconds that a prompt takes, `hit` tokens of which are there; call it where a rate is known.

    By the rate, which long prompts taught, but no less than one step beside what decodes there: the first token of a
    short prompt waits for the weights, and of a very long one for attention.
    """
    fresh = max(0, prompt - hit)
    rate_s, cost = fresh / view.prefill_tokens_per_s, view.step_cost
    if cost is None:
        return rate_s
    memory = cost.base_ns + cost.kv_ns * view.kv_tokens
    compute = cost.row_ns * view.requests + fresh * (cost.token_ns + cost.pair_ns * (prompt - 0.5 * fresh))
    step_s = (max(memory, compute) if cost.is_roofline else memory + compute) * _S
    return step_s if step_s > rate_s else rate_s


def denoise_parts(view: ReplicaView) -> Parts | None:
    """The cost of a diffusion replica that tells its work: the work ahead, and the request itself. None: it tells none.

    Nothing shares its device with what runs, so that there are no others to delay.
    """
    if view.denoise_cost is None:
        return None
    return view.work_ns * _S, view.own_work_ns * _S, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0


def _pulled(fresh: int, fetched: int, token_s: float, pull: KvPull | None) -> tuple[int, float]:
    """Tokens to compute and seconds to pull, where pulling what another replica holds is quicker than computing it."""
    if pull is None or fetched < pull.tokens_min:
        return fresh, 0.0
    fetch_s = pull.fixed_s + fetched * pull.bytes_per_token / pull.bytes_per_s
    return (fresh - fetched, fetch_s) if fetch_s < fetched * token_s else (fresh, 0.0)


def _unknown_step(view: ReplicaView, ask: Ask, weights: Weights) -> tuple[float, float]:
    """Seconds of a step without its rows and of a row, where nobody told what steps cost."""
    step = view.step_ns * _S if view.step_ns else ask.step_s
    row = step * weights.row_share
    return max(0.0, step - row * view.requests), row


def _overflow(view: ReplicaView, ask: Ask, token_s: float, step_s: float) -> float:
    """What it costs when KV does not fit: waiting until enough rows end, or computing a preempted row again."""
    total, usage = view.kv_tokens_total, view.kv_usage
    coming = view.queued_tokens + 0.5 * view.output_tokens_expected + ask.prompt - view.hit_tokens + ask.output
    over = usage * total + coming - total
    if over <= 0:
        return 0.0
    return over * token_s * (1 + view.requests) + over / total * ask.output * step_s


def _late(ask: Ask, first_s: float, step_s: float, weights: Weights) -> float:
    """A miss costs once. Past its deadline a request gains little by being early, so what it waits there counts less:
    it goes where it takes least from those that are still in time (measured past the knee: 0.717 -> 0.774 attainment).
    """
    decode_s = ask.output * step_s
    late_s = credit_s = 0.0
    if ask.ttft_s is not None:
        late_s = max(0.0, first_s - max(0.0, ask.ttft_s))
        credit_s = (1.0 - weights.late) * late_s
    if ask.tpot_s is not None:
        late_s = max(late_s, decode_s - ask.output * ask.tpot_s)
    if ask.e2e_s is not None:
        late_s = max(late_s, first_s + decode_s - ask.e2e_s)
    return weights.slo * min(1.0, late_s / weights.slo_ramp_s) - credit_s
