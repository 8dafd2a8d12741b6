"""`GET /v1/requests/{id}/evidence`: of requests as the run remembers them, of jobs as their table does."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.caller import Remembered, RequestIndex
from headway.adapters.gateway.door import Door
from headway.adapters.gateway.evidence import attempts_object, evidence_object
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Durable, Meters
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import CapacityError, RequestError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId

EVIDENCE: Final = re.compile(r"/v1/requests/(.+)/evidence")
_JOB: Final = re.compile(r"(video|img)_[A-Za-z0-9_-]{1,58}")


class EvidenceRoute:
    """Answers by public id, by the id that an answer has, or by the one that decisions, traces and logs show."""

    def __init__(self, serving: Serving, door: Door, index: RequestIndex, kept: Durable | Meters | None) -> None:
        self._serving, self._door, self._index = serving, door, index
        self._jobs = kept.jobs if isinstance(kept, Durable) else None

    async def answer(self, exchange: Exchange, public_id: str) -> None:
        """Raises RequestError 404 for what the tenant may not know of."""
        tenant = self._door.tenant(exchange)
        entry = self._entry(public_id, tenant)
        attempts = await self._attempts(public_id if entry is None else entry.requests[0], tenant)
        found = attempts_object(attempts) if attempts else self._remembered(public_id, entry)
        await exchange.respond(200, msgspec.json.encode(found))

    def _entry(self, public_id: str, tenant: Tenant) -> Remembered | None:
        entry = self._index.find(public_id, tenant)
        if entry is None:  # the answer's own id names the request too
            entry = self._index.find(public_id.removeprefix("chatcmpl-").removeprefix("cmpl-"), tenant)
        if entry is None:  # and so does the id that decisions, traces and logs show
            entry = self._index.find(public_id.removeprefix("req-").rsplit("-", 2)[0], tenant)
            entry = entry if entry is not None and public_id in entry.requests else None
        return entry

    async def _attempts(self, job: str, tenant: Tenant) -> Sequence[tuple[int, EvidenceRecord]]:
        if self._jobs is None or not _JOB.fullmatch(job):
            return ()
        try:
            return await self._jobs.evidence(job, None if tenant.admin else tenant.id)
        except CapacityError:
            if self._serving.evidence(RequestId(job)) is None or self._index.find(job, tenant) is None:
                raise
            return ()  # the run still knows the last one

    def _remembered(self, public_id: str, entry: Remembered | None) -> dict[str, object]:
        records = [self._serving.evidence(request) for request in entry.requests] if entry else []
        complete = [record for record in records if record is not None]
        if entry is None or len(complete) < len(entry.requests):
            raise RequestError(
                f"No evidence of request `{public_id[:256]}`: it is unknown, still running, or no longer kept.",
                status=404,
                code="request_not_found",
            )
        return evidence_object(complete, entry.trace_id)
