"""Requests that ended, with their evidence."""

from headway.core.decisions import Alternative, Decision
from headway.core.evidence import EvidenceRecord, FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams, TraceContext
from headway.core.units import NS_PER_MS

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"
CONTEXT = TraceContext(TRACE, SPAN, PARENT, True, "chat")


def request(name: str = "req-1", trace: TraceContext | None = CONTEXT) -> LlmRequest:
    sampling = SamplingParams(max_tokens=9, temperature=0.5)
    return LlmRequest(RequestId(name), TenantId("a"), ModelId("toy"), (1, 2, 3), sampling, 0, trace=trace)


def record(name: str = "req-1", outcome: str = "ok") -> EvidenceRecord:
    def ms(value: int) -> int:
        return value * NS_PER_MS

    route = Decision("pool", ms(12), "route", "rep-0", "lightest", (Alternative("rep-1", 2.0),), RequestId(name))
    chunk = Decision("step", ms(15), "chunk", "3", "the rest of the prompt", (), RequestId(name))
    worker = WorkerMarks(
        NodeId("rep-0"), ms(14), ms(15), ms(20), ms(30), ms(30), ms(2), steps=3, cached_tokens=1, decisions=(chunk,)
    )
    front = FrontMarks(
        RequestId(name), TenantId("a"), ms(10), ms(11), ms(12), ms(13), ms(21), ms(31), ms(32), 4,
        outcome=outcome, decisions=(route,),
    )  # fmt: skip
    return evidence_record(front, worker)
