"""The gateway's durable ports (`adapters/gateway/job_ports.py`) over the job table and the object store."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from headway.adapters.gateway.job_ports import (
    Body,
    Created,
    JobPage,
    JobQuery,
    JobView,
    KeptPicture,
    NewJob,
    OutputKind,
    Usage,
    UsageQuery,
)
from headway.adapters.jobs.evidence import moved
from headway.adapters.jobs.outputs import StoredOutput, read_json
from headway.adapters.jobs.places import Taken
from headway.adapters.jobs.records import JobRecord, NewRecord
from headway.adapters.storage.keys import job_prefix, object_key, sealed
from headway.adapters.storage.objects import DamagedObject, ObjectStore
from headway.adapters.webhooks.send import Webhooks
from headway.core.errors import CapacityError, RequestError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.jobs import OVER, JobEvent, JobStored, RowLost, SaveAsked
from headway.core.request import DiffusionRequest, Slo
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.live.jobs_table import Tables
from headway.live.jobs_usage import TokenMeter

log = logging.getLogger(__name__)

Feed = Callable[[Callable[[Ns], JobEvent]], None]
_Then = Literal["is lost", "is saved", "waits"]  # what a client's write means for a job


def _record(new: NewJob, body: bytes) -> NewRecord:
    request = new.request
    return NewRecord(
        id=request.id,
        kind=new.kind,
        tenant=request.tenant,
        model=request.model,
        steps=request.steps,
        body=body,
        echo=new.echo,
        urgency=request.urgency,
        estimate_ns=ns_from_s(new.device_s),
        webhook_url=new.webhook_url,
        key=new.idempotency,
        degraded=msgspec.json.encode(new.degraded) if new.degraded else None,
    )


class ClientDesk:
    """`Jobs`."""

    def __init__(
        self, tables: Tables, store: ObjectStore, hooks: Webhooks, feed: Feed, now_ns: Callable[[], Ns]
    ) -> None:
        self._tables, self._store, self._hooks = tables, store, hooks
        self._feed, self._now_ns = feed, now_ns
        self.previews = 0  # of a job that asks for none
        self.epoch_ns = 0  # Unix time of run start
        self.replicas: Callable[[ModelId], int] = lambda _: 1

    async def create(self, new: NewJob) -> Created:
        """See the port."""
        request, tables = new.request, self._tables
        job_prefix(request.tenant, request.id)
        if new.webhook_url is not None:
            self._hooks.check(new.webhook_url, request.tenant)
        slo = request.slo
        content = request.content
        if not content.previews:
            content = msgspec.structs.replace(content, previews=min(self.previews, request.steps - 1))
        kept = msgspec.structs.replace(
            request,
            arrived_ns=request.arrived_ns + self.epoch_ns,
            slo=Slo(
                None if slo.ttft_deadline_ns is None else slo.ttft_deadline_ns + self.epoch_ns,
                slo.tpot_ns,
                None if slo.e2e_deadline_ns is None else slo.e2e_deadline_ns + self.epoch_ns,
            ),
            content=content,
        )
        record = _record(new, msgspec.msgpack.encode(kept))
        # Shielded: a client that leaves now finds its job stored and begun, or not stored.
        return await asyncio.shield(self._insert(record, tables))

    async def _insert(self, new: NewRecord, tables: Tables) -> Created:
        record, row = await tables.ask(lambda: tables.clients.insert(new, self._now_ns()))
        if row is not None:
            self._feed(lambda at_ns: JobStored(at_ns, "edge", row))
        return Created(await self._view(record), is_replay=row is None)

    async def _view(self, record: JobRecord) -> JobView:
        """With the time that it still needs, by the estimates; None while nobody may run it."""
        if record.state in OVER or record.is_paused or record.is_held or not record.estimate_ns:
            return record.view()
        if not (replicas := self.replicas(ModelId(record.model))):
            return record.view()
        ahead_ns = await self._tables.ask(lambda: self._tables.clients.ahead_ns(record))
        return record.view(s_from_ns(ahead_ns) / replicas + s_from_ns(record.left_ns))

    async def get(self, job: str, tenant: TenantId | None) -> JobView | None:
        """See the port."""
        record = await self._tables.ask(lambda: self._tables.clients.find(job, tenant))
        return None if record is None else await self._view(record)

    async def list(self, query: JobQuery) -> JobPage:
        """See the port."""
        records, has_more = await self._tables.ask(lambda: self._tables.clients.page(query))
        return JobPage(tuple(record.view() for record in records), has_more)

    async def _changed(self, work: Callable[[], Taken | None], then: _Then) -> JobView | None:
        return await asyncio.shield(self._change(work, then))

    async def _change(self, work: Callable[[], Taken | None], then: _Then) -> JobView | None:
        """Write, and tell the node of this process at once; another one that runs it looks at its rows."""
        found = await self._tables.ask(work)
        if found is None:
            return None
        job, row, attempt = RequestId(found.record.id), found.row, found.attempt
        if attempt is not None and then == "is lost":
            self._feed(lambda at_ns: RowLost(at_ns, "client", job, attempt))
        elif attempt is not None and then == "is saved":
            self._feed(lambda at_ns: SaveAsked(at_ns, "client", job=job))
        elif row is not None:
            self._feed(lambda at_ns: JobStored(at_ns, "client", row))
        return await self._view(found.record)

    async def cancel(self, job: str, tenant: TenantId | None) -> JobView | None:
        """See the port."""
        return await self._changed(lambda: self._tables.clients.cancel(job, tenant, self._now_ns()), "is lost")

    async def pause(self, job: str, tenant: TenantId | None) -> JobView | None:
        """See the port."""
        return await self._changed(lambda: self._tables.places.pause(job, tenant, self._now_ns()), "is saved")

    async def resume(self, job: str, tenant: TenantId | None) -> JobView | None:
        """See the port."""
        return await self._changed(lambda: self._tables.places.resume(job, tenant), "waits")

    async def retry(self, job: str, tenant: TenantId | None) -> JobView | None:
        """See the port."""
        return await self._changed(lambda: self._tables.places.retry(job, tenant, self._now_ns()), "waits")

    async def reorder(self, job: str, tenant: TenantId | None, before: str) -> JobView | None:
        """See the port."""
        return await self._changed(lambda: self._tables.places.reorder(job, tenant, before), "waits")

    async def delete(self, job: str, tenant: TenantId | None) -> bool:
        """See the port."""
        return await asyncio.shield(self._delete(job, tenant))

    async def _delete(self, job: str, tenant: TenantId | None) -> bool:
        """Ended first, then its objects, then the row: what is interrupted between can be repeated."""
        if await self._change(lambda: self._tables.clients.cancel(job, tenant, self._now_ns()), "is lost") is None:
            return False
        record = await self._tables.ask(lambda: self._tables.clients.find(job, tenant))
        if record is None:
            return False
        await self._store.delete_below(job_prefix(record.tenant, job))
        return await self._tables.ask(lambda: self._tables.clients.delete(job, tenant)) is not None

    async def pictures(self, job: str, tenant: TenantId | None) -> tuple[bytes, ...]:
        """See the port."""
        body = await self._tables.ask(lambda: self._tables.clients.request(job, tenant))
        return () if body is None else msgspec.msgpack.decode(body, type=DiffusionRequest).content.pictures

    async def evidence(self, job: str, tenant: TenantId | None) -> Sequence[tuple[int, EvidenceRecord]]:
        """See the port."""
        found = await self._tables.ask(lambda: self._tables.evidence.of(job, tenant))
        return [(attempt, moved(record, -self.epoch_ns)) for attempt, record in found]

    async def content(self, job: str, tenant: TenantId | None, kind: OutputKind, index: int = 0) -> Body | None:
        """See the port."""
        record = await self._tables.ask(lambda: self._tables.clients.find(job, tenant))
        for made in () if record is None else record.outputs:
            if (made.output.kind, made.output.index) == (kind, index):
                try:
                    body = await self._store.get(made.key)
                except DamagedObject as error:
                    log.error("job %s: %s", job, error)
                    words = f"The {kind} of job `{job}` is damaged in the object store; it has to be made again."
                    raise RequestError(words, status=500, code="content_damaged") from error
                return None if body is None else Body(made.output.media_type, body)
        return None


class PictureDesk:
    """`Pictures`."""

    def __init__(self, tables: Tables, store: ObjectStore, now_ns: Callable[[], Ns], meter: TokenMeter) -> None:
        self._tables, self._store, self._now_ns, self._meter = tables, store, now_ns, meter

    async def keep(self, new: NewJob, pictures: Sequence[KeptPicture], gpu_seconds: float) -> JobView:
        """See the port."""
        request, stored = new.request, []
        for picture in pictures:
            key = object_key(request.tenant, request.id, 0, f"picture-{picture.index}")
            key = sealed(key, picture.body)
            await self._store.put(key, picture.body)
            stored.append(
                StoredOutput(
                    "picture",
                    picture.index,
                    picture.media_type,
                    len(picture.body),
                    key,
                    picture.seed,
                    read_json(picture.read),
                )
            )
        record = _record(new, msgspec.msgpack.encode(request))
        device_ns, clients = ns_from_s(gpu_seconds), self._tables.clients
        self._meter.metered(request.id)
        try:
            # Shielded: who is cancelled here finds it stored and metered, or neither.
            kept = await asyncio.shield(
                self._tables.ask(lambda: clients.insert_completed(record, stored, device_ns, self._now_ns()))
            )
        except (RequestError, CapacityError):
            self._meter.unmetered(request.id)
            raise
        return kept.view()

    def meter(self, request: RequestId, used: Usage) -> None:
        """See the port."""
        self._meter.count(request, used)


class MeterDesk:
    """`Meters`."""

    since: int | None = None

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def usage(self, query: UsageQuery) -> Sequence[Usage]:
        """See the port."""
        return await self._tables.ask(lambda: self._tables.usage.rows(query))

    async def sums(self, query: UsageQuery) -> Sequence[Usage]:
        """See the port."""
        return await self._tables.ask(lambda: self._tables.usage.sums(query))
