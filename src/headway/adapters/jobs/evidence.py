"""Evidence of attempts that are over (SPEC I1), as long as their jobs are kept."""

from typing import Final

import msgspec
from sqlalchemy import Connection, delete, insert, or_, select

from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.places import of_tenant
from headway.adapters.jobs.tables import evidence, jobs
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.units import Ns

ATTEMPTS_MAX: Final = 16  # of a job: the latest ones
DECISIONS_MAX: Final = 64  # of an attempt: the latest ones
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(EvidenceRecord)


class EvidenceTable:
    """Times in it are Unix times, as everywhere in the tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, job: RequestId, attempt: int, record: EvidenceRecord) -> None:
        """Write what an attempt has left; of a deleted job nothing is written."""
        body = _encoder.encode(msgspec.structs.replace(record, decisions=record.decisions[-DECISIONS_MAX:]))
        # On PostgreSQL nobody may delete it until this is written; heartbeats of the next attempt pass.
        there = select(jobs.c.id).where(jobs.c.id == job).with_for_update(read=True, key_share=True)
        is_old = or_(evidence.c.attempt == attempt, evidence.c.attempt <= attempt - ATTEMPTS_MAX)

        def work(connection: Connection) -> None:
            if connection.execute(there).one_or_none() is not None:
                connection.execute(delete(evidence).where(evidence.c.job == job, is_old))
                connection.execute(insert(evidence).values(job=job, attempt=attempt, record=body))

        self._database.run(work)

    def of(self, job: str, tenant: str | None) -> list[tuple[int, EvidenceRecord]]:
        """Attempts by number, with what they left; nothing where there is no such job of that tenant."""
        found = (
            select(evidence.c.attempt, evidence.c.record)
            .join_from(evidence, jobs)
            .where(jobs.c.id == job, *of_tenant(tenant))
            .order_by(evidence.c.attempt)
        )
        rows = self._database.run(lambda c: c.execute(found).all())
        return [(row.attempt, _decoder.decode(row.record)) for row in rows]


def moved(record: EvidenceRecord, by_ns: Ns) -> EvidenceRecord:
    """Return the record with its stamps so much later: from a run's time to Unix time, or back."""
    return msgspec.structs.replace(
        record,
        started_ns=record.started_ns + by_ns,
        ended_ns=record.ended_ns + by_ns,
        decisions=tuple(msgspec.structs.replace(one, at_ns=one.at_ns + by_ns) for one in record.decisions),
    )
