"""Usage in memory gives what the usage table gives, and forgets what nobody can ask for (SPEC H6)."""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from headway.adapters.gateway.job_ports import Place, UsageQuery
from headway.adapters.gateway.tally import Tally, day_of
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.usage import UsageTable
from headway.core.evidence import EvidenceRecord, FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.units import NS_PER_S, Ns
from headway.live.meters import KEPT_DAYS, MemoryMeters

DAY_NS: Final = 86_400 * NS_PER_S
ALWAYS: Final = UsageQuery(None, "1970-01-01", "2999-12-31")


def ended(
    tenant: str, model: str | None = "llm", replica: str | None = "rep-0", tokens: int | None = 10
) -> EvidenceRecord:
    worker = None if replica is None else WorkerMarks(NodeId(replica), 0, cached_tokens=4, steps=3, device_ns=10**9)
    name = None if model is None else ModelId(model)
    marks = FrontMarks(RequestId("req-1"), TenantId(tenant), 0, 0, 0, 0, 1, 2, 3, 5, model=name, prompt_tokens=tokens)
    return evidence_record(marks, worker)


class Calendar:
    """A clock that is set by hand, and meters on it."""

    def __init__(self) -> None:
        self.now_ns: Ns = 20_000 * DAY_NS
        self.meters = MemoryMeters(lambda: self.now_ns)

    def observe(self, *records: EvidenceRecord) -> None:
        for record in records:
            self.meters.observe(record)

    def rows(self, query: UsageQuery = ALWAYS) -> list[tuple[str, str, str, int]]:
        found = asyncio.run(self.meters.usage(query))
        return [(one.day, one.tenant, one.model, one.requests) for one in found]


def test_text_is_counted_by_day_tenant_and_model() -> None:
    calendar = Calendar()
    calendar.observe(ended("a"), ended("a"), ended("b"), ended("a", "other"))
    calendar.now_ns += DAY_NS
    calendar.observe(ended("a"))
    first, second = day_of(20_000 * DAY_NS), day_of(20_001 * DAY_NS)
    assert calendar.rows() == [
        (first, "a", "llm", 2),
        (first, "a", "other", 1),
        (first, "b", "llm", 1),
        (second, "a", "llm", 1),
    ]
    row = asyncio.run(calendar.meters.usage(ALWAYS))[0]
    assert (row.gpu_seconds, row.prompt_tokens, row.cached_tokens, row.output_tokens) == (2.0, 20, 8, 10)
    assert calendar.meters.since == 20_000 * 86_400


def test_what_no_replica_had_is_not_counted() -> None:
    calendar = Calendar()
    calendar.observe(ended("a", replica=None), ended("a", model=None))
    assert calendar.rows() == []


def test_pictures_that_nobody_kept_are_counted_by_their_device_time_alone() -> None:
    # SPEC H6
    calendar = Calendar()
    calendar.observe(ended("a", tokens=None))
    (row,) = asyncio.run(calendar.meters.usage(UsageQuery(None, "2000-01-01", "2999-01-01")))
    assert (row.gpu_seconds, row.requests, row.images, row.output_tokens) == (1.0, 0, 0, 0)


def test_days_that_no_query_reaches_are_forgotten() -> None:
    calendar = Calendar()
    calendar.observe(ended("a"))
    calendar.now_ns += (KEPT_DAYS - 1) * DAY_NS
    calendar.observe(ended("a"))
    assert len(calendar.rows()) == 2
    calendar.now_ns += DAY_NS
    calendar.observe(ended("a"))
    assert [row[0] for row in calendar.rows()] == [day_of(calendar.now_ns - DAY_NS), day_of(calendar.now_ns)]


def test_every_query_is_answered_as_the_table_does(tmp_path: Path) -> None:
    calendar, tally = Calendar(), Tally()
    for number in range(40):
        record = ended("abc"[number % 3], ("m", "n")[number % 2], tokens=number)
        calendar.now_ns += DAY_NS // 7
        calendar.observe(record)
        tally.observe(record, calendar.now_ns)
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    table = UsageTable(database)
    table.add_all(tally.sums)
    days = sorted({place[0] for place in tally.sums})
    after: Place = (days[1], "b", "m")
    queries = [
        ALWAYS,
        msgspec.structs.replace(ALWAYS, limit=3),
        msgspec.structs.replace(ALWAYS, after=after, limit=4),
        msgspec.structs.replace(ALWAYS, tenant=TenantId("b"), first_day=days[1], last_day=days[3]),
        msgspec.structs.replace(ALWAYS, model="n", tenant=TenantId("nobody")),
        msgspec.structs.replace(ALWAYS, model="n", after=after),
    ]
    for query in queries:
        assert list(asyncio.run(calendar.meters.usage(query))) == list(table.rows(query))
        assert list(asyncio.run(calendar.meters.sums(query))) == list(table.sums(query))
    database.close()
