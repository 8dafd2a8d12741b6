"""Replicas and requests for router tests."""

from typing import Any

import msgspec

from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.reports import DenoiseCoefficients, ReplicaReport, StepCoefficients
from headway.core.request import LlmRequest, SamplingParams


class View(msgspec.Struct, frozen=True):
    id: NodeId
    requests: int = 0
    queued_tokens: int = 0
    kv_tokens: int = 0
    output_tokens_expected: int = 0
    waiting: int = 0
    in_flight: int = 0
    hit_tokens: int = 0
    distinct_hits: int = 0
    uncached_in_flight: int = 0
    kv_usage: float = 0.0
    kv_tokens_total: int = 0
    prefill_tokens_per_s: float = 0.0
    step_ns: int = 0
    step_cost: StepCoefficients | None = None
    age_ns: int = 0
    source: str = "engine"
    adapters: tuple[str, ...] = ()
    adapters_max: int = 0
    queued_tokens_spread: int = 0
    host: str = ""
    work_ns: int = 0
    own_work_ns: int = 0
    denoise_cost: DenoiseCoefficients | None = None


def llm(name: str, prompt: int = 10, max_tokens: int = 20, **change: Any) -> LlmRequest:  # Any: fields of LlmRequest
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    tokens = change.pop("tokens", tuple(range(1, prompt + 1)))
    request = LlmRequest(RequestId(name), TenantId("default"), ModelId("synthetic"), tokens, sampling, 0)
    return msgspec.structs.replace(request, **change)


def report(replica: str, number: int, **change: Any) -> ReplicaReport:  # Any: fields of ReplicaReport
    base = ReplicaReport(
        replica=NodeId(replica),
        incarnation=1,
        number=number,
        at_ns=0,
        role="llm",
        model="synthetic",
        waiting=0,
        running=0,
        waiting_prefill_tokens=0,
        running_kv_tokens=0,
        kv_blocks_free=100,
        kv_blocks_total=100,
        submits_seen=0,
    )
    return msgspec.structs.replace(base, **change)
