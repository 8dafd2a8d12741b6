"""Idempotency keys: per tenant, one key stands for one body, and for the job or the answer that it led to."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from headway.adapters.gateway.job_ports import Held, IdempotencyKey
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.records import NewRecord
from headway.adapters.jobs.tables import answers
from headway.core.errors import RequestError
from headway.core.units import Ns


class InUse(msgspec.Struct, frozen=True):
    """Somebody runs under this key."""

    owner: str


class KeyTaken(RequestError):
    """Another gateway stored a job under this key first, and has committed it: looked up again, it is found."""


def conflict(key: IdempotencyKey) -> RequestError:
    """What is answered where a key stands for something else."""
    return RequestError(
        f"Idempotency-Key {key.key!r} was used with another body; use a new key",
        status=409,
        code="idempotency_conflict",
    )


def held_job(connection: Connection, tenant: str, key: IdempotencyKey, now_ns: Ns) -> str | None:
    """The job that this key has made. Raises RequestError 409 where the key stands for something else."""
    same = (answers.c.tenant == tenant, answers.c.key == key.key)
    connection.execute(delete(answers).where(*same, answers.c.expires_ns <= now_ns))
    row = connection.execute(select(answers.c.digest, answers.c.job).where(*same)).one_or_none()
    if row is None:
        return None
    if row.digest != key.digest or row.job is None:
        raise conflict(key)
    return str(row.job)


def bind_job(connection: Connection, new: NewRecord, expires_ns: Ns) -> None:
    """From now on the key stands for this job. Raises KeyTaken (409) where another gateway was first."""
    if new.key is None:
        return
    row = {"tenant": new.tenant, "key": new.key.key, "digest": new.key.digest, "job": new.id}
    try:
        with connection.begin_nested():
            connection.execute(insert(answers).values(**row, until_ns=0, expires_ns=expires_ns))
    except IntegrityError as error:
        raise KeyTaken(
            f"Idempotency-Key {new.key.key!r} is in use at this moment; try again",
            status=409,
            code="idempotency_in_use",
        ) from error


class AnswerTable:
    """Answers of synchronous requests."""

    def __init__(self, database: Database, owner: str) -> None:
        self._database, self._owner = database, owner

    def begin(self, tenant: str, key: IdempotencyKey, now_ns: Ns, until_ns: Ns) -> Held | InUse:
        """Take the key, or find who has it. Raises RequestError 409 for another body."""
        same = (answers.c.tenant == tenant, answers.c.key == key.key)

        def work(connection: Connection) -> Held | InUse:
            connection.execute(delete(answers).where(*same, answers.c.expires_ns <= now_ns))
            row = connection.execute(select(answers).where(*same)).one_or_none()
            if row is None:
                values = {"tenant": tenant, "key": key.key, "digest": key.digest, "owner": self._owner}
                try:
                    with connection.begin_nested():
                        connection.execute(insert(answers).values(**values, until_ns=until_ns, expires_ns=until_ns))
                except IntegrityError:
                    return InUse("another gateway")
                return Held()
            if row.digest != key.digest or row.job is not None:
                raise conflict(key)
            return InUse(row.owner) if row.answer is None else Held(row.answer)

        return self._database.run(work)

    def renew(self, keys: Sequence[tuple[str, str]], until_ns: Ns) -> None:
        """Go on holding these keys, each with its tenant: their requests still run."""
        held = tuple_(answers.c.tenant, answers.c.key).in_(keys)
        mine = (held, answers.c.owner == self._owner, answers.c.answer.is_(None), answers.c.job.is_(None))
        longer = update(answers).where(*mine).values(until_ns=until_ns, expires_ns=until_ns)
        self._database.run(lambda c: c.execute(longer))

    def finish(self, tenant: str, key: IdempotencyKey, answer: bytes, expires_ns: Ns) -> None:
        """Keep the answer."""
        self._database.run(
            lambda c: c.execute(
                update(answers).where(*self._mine(tenant, key)).values(answer=answer, expires_ns=expires_ns)
            )
        )

    def abandon(self, tenant: str, key: IdempotencyKey) -> None:
        """Free the key."""
        free = delete(answers).where(*self._mine(tenant, key), answers.c.answer.is_(None))
        self._database.run(lambda c: c.execute(free))

    def _mine(self, tenant: str, key: IdempotencyKey) -> tuple[ColumnElement[bool], ...]:
        return (answers.c.tenant == tenant, answers.c.key == key.key, answers.c.owner == self._owner)

    def sweep(self, now_ns: Ns) -> None:
        """Forget old ones."""
        self._database.run(lambda c: c.execute(delete(answers).where(answers.c.expires_ns <= now_ns)))
