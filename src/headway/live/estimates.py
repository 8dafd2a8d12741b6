"""Predicts what a request needs, from what the replicas' steps are believed to cost and their last reports."""

from typing import Final

import msgspec

from headway.adapters.gateway.ports import Estimate, PictureEstimate
from headway.core.decisions import Explanation
from headway.core.errors import CapacityError
from headway.core.ids import NodeId
from headway.core.reports import ReplicaReport, StepCoefficients
from headway.core.request import DiffusionRequest, LlmRequest
from headway.core.units import ns_from_s, s_from_ns
from headway.cost.diffusion import stages
from headway.cost.diffusion_memory import needed_bytes
from headway.cost.first_runs import cold_ns, is_cold
from headway.cost.llm import StepShape, pairs, step_ns
from headway.live.board import Board, Known
from headway.sched.admission.protocol import lessened

OUTPUT_TOKENS_UNKNOWN: Final = 200  # of a request whose like has not ended yet; `cost_aware` plans with as many


def estimate(request: LlmRequest, board: Board, explained: Explanation) -> Estimate:
    """The replica that the router would take counts, with the TTFT that it forecasts there; where it forecasts none,
    the one with the least TTFT by what its steps cost. Raises CapacityError when none of the model is there.

    The output is as long as is likely (`explained`), else OUTPUT_TOKENS_UNKNOWN, and never longer than its limit. Of
    what no replica can hold to that limit admission need not be asked.
    """
    costs = {node: board.step_cost(node) for node in board.serving(request.model)}
    told = {node: cost for node, cost in costs.items() if cost is not None}
    if not told:
        raise CapacityError(f"no replica of {request.model} is ready", status=503, code="no_replica")
    likely, limit = explained.output_tokens_likely, request.sampling.max_tokens
    output = min(OUTPUT_TOKENS_UNKNOWN if likely is None else max(1, likely), limit)
    found = {node: _on(request, output, cost, board.replicas[node], explained.verdict) for node, cost in told.items()}
    for seen in explained.replicas:
        if seen.ttft_s is not None and (there := found.get(NodeId(seen.replica))) is not None:
            return msgspec.structs.replace(there, ttft_ns=ns_from_s(seen.ttft_s))
    return min(found.values(), key=lambda one: one.ttft_ns)


def foresee(request: DiffusionRequest, board: Board, explained: Explanation) -> PictureEstimate | None:
    """The replica that would be done first counts; None while none has told what its work costs. What admission would
    take away is not counted: an estimate is of what would run.

    Raises CapacityError when no replica of the model is there.
    """
    less = lessened(request, explained.left)
    assert isinstance(less, DiffusionRequest)
    nodes = board.serving(less.model)
    if not nodes:
        raise CapacityError(f"no replica of {less.model} is ready", status=503, code="no_replica")
    reports = [board.replicas[node].report for node in nodes]
    found = [_picture(less, report, explained) for report in reports if report is not None]
    told = [one for one in found if one is not None]
    return min(told, key=lambda one: one.eta_s) if told else None


def _picture(request: DiffusionRequest, report: ReplicaReport, explained: Explanation) -> PictureEstimate | None:
    cost = report.denoise_cost
    if cost is None:
        return None
    by_stage, memory = stages(cost, request), report.denoise_memory
    cold_s = s_from_ns(cold_ns(cost, report.warm, request))
    return PictureEstimate(
        stages=msgspec.structs.asdict(by_stage),
        gpu_seconds=by_stage.total * cost.devices,  # a shape is prepared at the replica's own expense
        wait_s=s_from_ns(report.queued_work_ns),
        verdict=explained.verdict,
        degraded=dict[str, int | str](explained.left),
        memory_bytes=None if memory is None else needed_bytes(memory, cost, request),
        unservable=explained.unservable,
        cold_s=cold_s,
        is_cold=is_cold(report.warm, request.shape),
    )


def _on(request: LlmRequest, output: int, cost: StepCoefficients, known: Known, verdict: str) -> Estimate:
    report = known.report
    running = 0 if report is None else report.running
    kv_tokens = 0 if report is None else report.running_kv_tokens
    queued = 0 if report is None else report.waiting_prefill_tokens
    prompt, limit = len(request.prompt), request.sampling.max_tokens
    queue_ns = step_ns(cost, StepShape(running, kv_tokens, queued, pairs(0, queued))) if queued else 0
    prefill_ns = step_ns(cost, StepShape(running, kv_tokens, prompt, pairs(0, prompt)))

    def decode_ns(tokens: int) -> int:
        # Half of the output stands for the context that decoding sees on average.
        return step_ns(cost, StepShape(running + 1, kv_tokens + prompt + tokens // 2))

    def device_s(tokens: int) -> float:
        # A step serves every running request; each pays its share of it.
        return s_from_ns(prefill_ns + decode_ns(tokens) * max(0, tokens - 1) // (running + 1))

    is_too_large = known.limits is not None and _kv_blocks(prompt + limit, known) > known.limits.kv_blocks
    return Estimate(
        ttft_ns=queue_ns + prefill_ns,
        tpot_ns=decode_ns(output),
        device_seconds=device_s(output),
        kv_bytes=_kv_blocks(prompt + output, known) * (0 if known.limits is None else known.limits.kv_bytes_per_block),
        verdict="reject" if is_too_large else verdict,
        output_tokens=output,
        device_seconds_max=device_s(limit),
    )


def _kv_blocks(tokens: int, known: Known) -> int:
    size = 1 if known.limits is None else known.limits.block_size
    return -(-tokens // size)
