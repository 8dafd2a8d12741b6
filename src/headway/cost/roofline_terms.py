"""What a rank of a stage costs per token, pair and byte (REFERENCE 2), worked out once for a deployment."""

import msgspec

from headway.core.units import NS_PER_S
from headway.cost.collectives import (
    Line,
    all_gather,
    all_reduce,
    all_to_all,
    combine_bytes,
    dispatch_bytes,
    forwarding_all_to_all,
    p2p,
)
from headway.cost.deployment import Deployment
from headway.cost.devices import BYTES_OF
from headway.cost.links import Link
from headway.cost.models import WIDE


class Terms(msgspec.Struct, frozen=True, gc=False):
    """Nanoseconds of one rank of the slowest stage. Attention terms hold layers that look back without a window."""

    token: float  # products of weights, per token
    sampled: float  # products of the head, per sampled row
    weights: float  # reading weights once
    expert_token: float  # products of experts, per token of the replica
    expert_hit: float  # reading all experts of a rank: times the share that is hit
    miss: float  # a token misses an expert with this probability
    decode_pair: float  # attention of decodes, per token of context
    prefill_pair: float  # attention of prompts, per query-key pair
    past_token: float  # latent caches are unpacked for prompts, per token of history
    kv: float  # reading the cache, per token
    global_share: float  # of layers without a window
    window: int


class Wires(msgspec.Struct, frozen=True, gc=False):
    """Communication of one stage: lines in tokens of a rank, times how often each runs."""

    reduce: Line
    reduces: float
    experts: Line  # dispatch and combine, or gather and scatter, of one layer, per decode
    prompts: Line  # the same per prompt token: large steps use kernels that send a token once per host
    expert_layers: float
    ring: Line  # KV of a chunk passed on in context parallelism, all layers
    merge: Line  # partial results of decodes under context parallelism, all layers, per row
    hop: Line  # to the next stage


def terms_of(deployment: Deployment) -> Terms:
    """Return the costs of a rank."""
    model, device, layout, reach = deployment.model, deployment.device, deployment.layout, deployment.efficiency
    stage = -(-model.layers // layout.pp) / model.layers
    flops = device.flops_of(deployment.dtype) * layout.tp
    wide = deployment.dtype if deployment.dtype in WIDE else "bfloat16"
    half = device.flops_of(wide) * layout.tp
    read = reach.memory * device.bytes_per_s / NS_PER_S
    linear = model.linear_parameters * stage
    attention = NS_PER_S / (reach.attention * half) * model.layers * stage
    expert_token = expert_hit = miss = 0.0
    if (moe := model.experts) is not None:
        dtype = model.expert_dtype(deployment.dtype)
        ranks = layout.tp * layout.dp
        of_all = moe.layers * stage * model.expert_parameters / ranks
        imbalance = reach.imbalance if layout.ep > 1 else 1.0
        expert_token = 2 * of_all * moe.per_token * imbalance / (reach.experts * device.flops_of(dtype)) * NS_PER_S
        expert_hit = of_all * moe.experts * BYTES_OF[dtype] / read
        miss = 1 - moe.per_token / moe.experts
    if (mla := model.latent) is not None:
        decode_pair = 2 * model.heads * (2 * mla.kv_rank + mla.rope_dim) * attention
        prefill_pair = 2 * model.heads * (mla.nope_dim + mla.rope_dim + mla.value_dim) * attention
        unpack = 2 * mla.kv_rank * model.heads * (mla.nope_dim + mla.value_dim) * model.layers * stage
    else:
        decode_pair = prefill_pair = 4 * model.heads * model.head_dim * attention
        unpack = 0
    products = NS_PER_S / (reach.compute * flops)
    return Terms(
        token=2 * linear * products,
        sampled=2 * model.head_parameters * NS_PER_S / (reach.compute * half),
        weights=(linear * BYTES_OF[deployment.dtype] + model.head_parameters * BYTES_OF[wide]) / (read * layout.tp),
        expert_token=expert_token,
        expert_hit=expert_hit,
        miss=miss,
        decode_pair=decode_pair,
        prefill_pair=prefill_pair,
        past_token=unpack * products,
        kv=model.kv_bytes_per_token_of_rank(layout.tp, deployment.kv_type) * stage / read,
        global_share=1 - model.windowed_layers / model.layers,
        window=model.window,
    )


def wires_of(deployment: Deployment) -> Wires:
    """Return what a stage communicates. Ranks are placed tp, then cp, dp and pp, so that tp stays inside a host."""
    model, layout, share = deployment.model, deployment.layout, deployment.efficiency.collective_floor
    inside, between, host = deployment.link_used, deployment.network_used, deployment.device.devices_per_host
    stage = -(-model.layers // layout.pp) / model.layers
    layers = model.layers * stage
    moe_layers = model.experts.layers * stage if model.experts is not None else 0.0
    number = 4.0 if deployment.dtype == "float32" else 2.0
    token = model.hidden * number

    def reach(ranks: int) -> Link:
        return inside if ranks <= host else between

    experts = prompts = Line()
    group = layout.tp * layout.dp
    if layout.dp > 1 and (moe := model.experts) is not None:
        if layout.ep > 1:
            experts = _exchange(deployment, all_to_all(inside, between, layout.ep, host))
            prompts = _exchange(deployment, forwarding_all_to_all(inside, between, layout.ep, host, moe.per_token))
        else:
            gather = all_gather(reach(group * layout.cp), group)
            both = Line(2 * gather.fixed_ns, 2 * gather.per_byte_ns, 2 * gather.floor_ns)
            experts = prompts = _line(both, token * layout.dp, share)
    reduces = 2 * layers - (moe_layers if layout.dp > 1 else 0.0) if layout.tp > 1 else 0.0
    ring = p2p(reach(layout.tp * layout.cp))
    chunk = model.kv_bytes_per_token_of_rank(layout.tp, deployment.kv_type) * stage
    parts = all_gather(reach(layout.tp * layout.cp), layout.cp) if layout.cp > 1 else Line()
    partial = model.heads / layout.tp * (model.head_dim + 1) * 4.0 * layout.cp
    spread = layout.tp * layout.cp * layout.dp
    return Wires(
        reduce=_line(all_reduce(reach(layout.tp), layout.tp), token, share),
        reduces=reduces,
        experts=experts,
        prompts=prompts,
        expert_layers=moe_layers if layout.dp > 1 else 0.0,
        ring=Line(ring.fixed_ns * layers, ring.per_byte_ns * chunk),
        merge=_scaled(_line(parts, partial, share), layers),
        hop=_line(p2p(reach(spread * layout.pp)), token / layout.tp, share) if layout.pp > 1 else Line(),
    )


def _exchange(deployment: Deployment, line: Line) -> Line:
    """Dispatch and combine of one layer per token of a rank: tokens of a dp rank are split over its tp."""
    moe = deployment.model.experts
    copies = moe.per_token if moe is not None else 0
    narrow = BYTES_OF[deployment.dtype] <= 1
    sent = dispatch_bytes(1, copies, deployment.model.hidden, scaled_fp8=narrow)
    sent += combine_bytes(1, copies, deployment.model.hidden)
    return Line(2 * line.fixed_ns, line.per_byte_ns * sent / deployment.layout.tp)


def _line(line: Line, size: float, share: float) -> Line:
    """Per unit of `size` bytes, with the engine's share of floor and latencies."""
    return Line(line.fixed_ns * share, line.per_byte_ns * size, line.floor_ns * share)


def _scaled(line: Line, times: float) -> Line:
    return Line(line.fixed_ns * times, line.per_byte_ns * times, line.floor_ns * times)
