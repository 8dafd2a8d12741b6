"""Evidence of one request (SPEC I1, I2): worker and front marks, and the record made of both."""

import msgspec

from headway.core.decisions import Decision
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.units import Ns, ms_from_ns


class WorkerMarks(msgspec.Struct, frozen=True):
    """One stay of a request at one replica, in the worker's clock (on one host the front's too)."""

    replica: NodeId
    received_ns: Ns
    scheduled_ns: Ns | None = None  # its first chunk was handed to the executor
    first_token_ns: Ns | None = None
    last_token_ns: Ns | None = None
    finished_ns: Ns | None = None
    preempted_ns: Ns = 0  # after the first token: time without row
    preempted_before_first_ns: Ns = 0
    preemptions: int = 0
    cached_tokens: int = 0
    steps: int = 0
    idle_gap_ns: Ns = 0  # device idle before its steps
    host_ns: Ns = 0  # scheduler and executor host time of its steps
    overlapped_ns: Ns = 0  # part of host_ns hidden behind the device
    recompute_ns: Ns = 0  # computing again what a preemption threw away; never also hand-off
    handoff_ns: Ns = 0  # exposed part
    transfer_bytes: int = 0
    communication_ns: Ns = 0
    exposed_comm_ns: Ns = 0
    device_ns: Ns = 0  # its share of the device: step time split over the tokens of each step
    decisions: tuple[Decision, ...] = ()
    denoised_ns: Ns | None = None  # end of its last denoise plan, in which its output is decoded
    text_encode_ns: Ns = 0  # parts of the time until then
    vae_encode_ns: Ns = 0
    vae_decode_ns: Ns = 0
    is_cold: bool = False  # some of its steps were the first of their shape and batch there (SPEC F8)


class FrontMarks(msgspec.Struct, frozen=True):
    """One request seen from the front: every stamp that the exclusive segments are cut from."""

    request: RequestId
    tenant: TenantId
    received_ns: Ns  # first byte of the request
    body_ns: Ns  # last byte of the body
    arrived_ns: Ns  # validated and tokenised, at the FrontNode
    dispatched_ns: Ns | None
    first_token_ns: Ns | None  # written to the client's stream
    last_token_ns: Ns | None  # message with the last token reached the front
    ended_ns: Ns  # last byte handed to the transport
    output_tokens: int
    input_bytes: int = 0
    model_load_ns: Ns = 0  # waiting for a cold replica
    cold_start: bool = False
    outcome: str = "ok"
    decisions: tuple[Decision, ...] = ()
    model: ModelId | None = None
    prompt_tokens: int | None = None  # None: no language model; relayed and not counted upstream: an estimate
    stored_ns: Ns = 0  # its outputs were stored as objects, after the last message of its replica


class EvidenceRecord(msgspec.Struct, frozen=True, tag=True):
    """The record of CONTRACT, Evidence. `segments` are exclusive and add up to `e2e_ms`; the rest is beside."""

    request: RequestId
    tenant: TenantId
    outcome: str
    segments: dict[str, float]
    queue_wait_ms: float
    input_transfer_bytes: int
    input_transfer_ms: float
    prefill_ms: float | None
    decode_ms: float | None
    idle_gap_ms: float | None
    overlap_ratio: float | None
    stream_output_ms: float | None
    transfer_bytes: int | None
    handoff_ms: float | None
    recompute_ms: float | None
    network_wait_ms: float | None
    communication_ms: float | None
    exposed_comm_ms: float | None
    model_load_ms: float
    cold_start: bool
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float
    cached_tokens: int
    output_tokens: int
    preemptions: int
    steps_done: int
    replica: NodeId | None
    decisions: tuple[Decision, ...]
    started_ns: Ns
    ended_ns: Ns
    trace_id: str | None = None  # told by the edge, which knows the client's trace
    model: ModelId | None = None
    prompt_tokens: int | None = None
    device_ms: float | None = None  # its share of the device; None: no engine of ours ran it


def _cuts(front: FrontMarks, worker: WorkerMarks | None) -> list[tuple[str, Ns]]:
    """Return the (segment, end) cuts of the timeline in order; each segment begins where the one before ends."""
    cuts = [("input_transfer", front.body_ns), ("admission", front.arrived_ns)]
    if front.model_load_ns:
        cuts.append(("model_load", front.arrived_ns + front.model_load_ns))
    cuts.append(("gateway_queue", front.dispatched_ns if front.dispatched_ns is not None else front.ended_ns))
    if worker is None:
        return cuts
    cuts.append(("network_wait", worker.received_ns))
    begun = worker.scheduled_ns if worker.scheduled_ns is not None else worker.finished_ns
    if begun is not None:
        cuts.append(("engine_queue", begun))
    if worker.denoised_ns is not None:
        cuts.append(("denoise", worker.denoised_ns))
    if worker.first_token_ns is not None:
        cuts.append(("prefill", worker.first_token_ns))
    if worker.last_token_ns is not None:
        cuts.append(("decode", worker.last_token_ns))
    if front.last_token_ns is not None:
        cuts.append(("network_wait", front.last_token_ns))
    return cuts


def _segments(front: FrontMarks, worker: WorkerMarks | None) -> dict[str, Ns]:
    out: dict[str, Ns] = {}
    at, ended_ns = front.received_ns, front.ended_ns
    for name, cut in _cuts(front, worker):
        end = at if cut < at else cut
        end = ended_ns if end > ended_ns else end
        out[name] = out.get(name, 0) + end - at
        at = end
    rest = "stream_output" if front.last_token_ns is not None else "other"
    out[rest] = out.get(rest, 0) + front.ended_ns - at
    _carve(out, rest, "upload", front.stored_ns)
    if worker is not None:
        _carve(out, "denoise", "text_encode", worker.text_encode_ns)
        _carve(out, "denoise", "vae_encode", worker.vae_encode_ns)
        _carve(out, "denoise", "vae_decode", worker.vae_decode_ns)
        _carve(out, "denoise", "preempted", worker.preempted_ns)
        _carve(out, "decode", "preempted", worker.preempted_ns)
        _carve(out, "prefill", "preempted", worker.preempted_before_first_ns)
        _carve(out, "decode", "recompute", worker.recompute_ns)
        _carve(out, "decode", "handoff", worker.handoff_ns)  # the prefill replica has streamed the first token
    return out


def _carve(segments: dict[str, Ns], source: str, target: str, amount: Ns) -> None:
    """Move time from one segment to another; the sum stays."""
    moved = min(amount, segments.get(source, 0)) if amount else 0
    if moved:
        segments[source] -= moved
        segments[target] = segments.get(target, 0) + moved


def evidence_record(front: FrontMarks, worker: WorkerMarks | None) -> EvidenceRecord:
    """Cut the request's life into exclusive segments. A field that does not apply is None, never 0."""
    ns = _segments(front, worker)
    ms = {name: ms_from_ns(value) for name, value in ns.items()}
    first, count = front.first_token_ns, front.output_tokens
    ttft = None if first is None else first - front.received_ns
    tpot = None
    if worker is not None and worker.first_token_ns is not None and worker.last_token_ns is not None and count > 1:
        tpot = ms_from_ns(ns.get("decode", 0)) / (count - 1)
    ran = worker is not None and worker.steps > 0
    hidden = worker.overlapped_ns / worker.host_ns if worker is not None and ran and worker.host_ns > 0 else None
    queues = ns.get("gateway_queue", 0) + ns.get("engine_queue", 0) + ns.get("preempted", 0)
    return EvidenceRecord(
        request=front.request,
        tenant=front.tenant,
        outcome=front.outcome,
        segments=ms,
        queue_wait_ms=ms_from_ns(queues),
        input_transfer_bytes=front.input_bytes,
        input_transfer_ms=ms.get("input_transfer", 0.0),
        prefill_ms=ms.get("prefill"),
        decode_ms=ms.get("decode"),
        idle_gap_ms=ms_from_ns(worker.idle_gap_ns) if worker is not None and ran else None,
        overlap_ratio=hidden,
        stream_output_ms=ms.get("stream_output"),
        transfer_bytes=worker.transfer_bytes if worker is not None and worker.transfer_bytes else None,
        handoff_ms=ms.get("handoff"),
        recompute_ms=ms.get("recompute"),
        network_wait_ms=ms.get("network_wait"),
        communication_ms=ms_from_ns(worker.communication_ns)
        if worker is not None and worker.communication_ns
        else None,
        exposed_comm_ms=ms_from_ns(worker.exposed_comm_ns) if worker is not None and worker.communication_ns else None,
        model_load_ms=ms_from_ns(front.model_load_ns),
        cold_start=front.cold_start or (worker is not None and worker.is_cold),
        ttft_ms=None if ttft is None else ms_from_ns(ttft),
        tpot_ms=tpot,
        e2e_ms=ms_from_ns(front.ended_ns - front.received_ns),
        cached_tokens=worker.cached_tokens if worker is not None else 0,
        output_tokens=count,
        preemptions=worker.preemptions if worker is not None else 0,
        steps_done=worker.steps if worker is not None else 0,
        replica=worker.replica if worker is not None else None,
        decisions=front.decisions + (worker.decisions if worker is not None else ()),
        started_ns=front.received_ns,
        ended_ns=front.ended_ns,
        model=front.model,
        prompt_tokens=front.prompt_tokens,
        device_ms=ms_from_ns(worker.device_ns) if worker is not None and (ran or worker.device_ns) else None,
    )
