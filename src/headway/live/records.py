"""What has become of requests: decisions counted, evidence kept and passed on; of every process of the gateway."""

import logging
from typing import Final

import msgspec

from headway.adapters.gateway.ports import RecordSink
from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.request import LlmRequest, TextRequest
from headway.live.clock import Clock
from headway.live.exports import Exports
from headway.live.stores import EvidenceStore, TelemetrySettings, Timeline

log = logging.getLogger(__name__)

_TOLD: Final = frozenset(
    {"health", "breaker", "drain"}
)  # of the fleet, rare, and what an operator looks for in the log


class Records:
    """Told by the edge of this process's front, and by the others (`fronts.Reader`)."""

    def __init__(self, clock: Clock, timeline: Timeline, settings: TelemetrySettings) -> None:
        """Raises ConfigError for sinks of evidence that cannot work."""
        self._timeline = timeline
        self.evidence = EvidenceStore(settings.evidence_records_max, settings.evidence_bytes_max)
        self.sinks: list[RecordSink] = []
        self.exports = Exports(settings, clock.epoch_ns())
        self.requests: dict[RequestId, LlmRequest | TextRequest] = {}  # whose evidence is still to come
        self.admissions: dict[str, int] = {}  # verdicts
        self._not_routed_yet: dict[RequestId, None] = {}  # admission's verdict on them is counted already
        self._routed: dict[RequestId, None] = {}  # once; a second route is a retry, not an admission

    def decided(self, origin: str, decision: Decision) -> None:
        """A decision was made, here or in a further process."""
        self._timeline.add_decision(origin, decision)
        if decision.kind == "scale" and decision.chosen == "scale_out":  # a verdict of admission; pools grow and shrink
            self._count(decision.chosen)
        if decision.kind in _TOLD:
            log.warning("%s %s: %s", decision.kind, decision.chosen, decision.reason)
        request = decision.request
        if request is None:
            return
        if decision.kind == "admit":
            self._count(decision.chosen)
            if decision.chosen in ("queue", "admit", "degrade"):  # its route comes later, and counts no second verdict
                self._not_routed_yet[request] = None
        elif decision.kind == "route" and request not in self._not_routed_yet and request not in self._routed:
            self._count("admit")
        if decision.kind == "route":
            self._not_routed_yet.pop(request, None)
            self._routed[request] = None

    def _count(self, verdict: str) -> None:
        self.admissions[verdict] = self.admissions.get(verdict, 0) + 1

    def forget(self, request: RequestId) -> None:
        """No evidence of it will come."""
        self._not_routed_yet.pop(request, None)
        self._routed.pop(request, None)

    def ended(self, record: EvidenceRecord, request: TextRequest | None = None) -> None:
        """A request has ended, here or in a further process."""
        self.forget(record.request)
        known = self.requests.pop(record.request, None)
        self._keep(record, known or request)

    def _keep(self, record: EvidenceRecord, request: LlmRequest | TextRequest | None) -> None:
        if request is not None and request.trace is not None:
            record = msgspec.structs.replace(record, trace_id=request.trace.trace_id)
        self.evidence.add(record)
        if request is not None:
            self.exports.ended(record, request)
        if log.isEnabledFor(logging.INFO):
            log.info("request ended", extra=_shown(record))
        for sink in self.sinks:
            sink(record)


def _shown(record: EvidenceRecord) -> dict[str, object]:
    names = ("request", "tenant", "replica", "trace_id", "outcome", "e2e_ms", "ttft_ms", "output_tokens")
    return {name: getattr(record, name) for name in names}
