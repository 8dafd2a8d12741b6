"""Rows of outputs: which objects a job has made, and where they lie."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, insert

from headway.adapters.jobs.tables import outputs
from headway.core.artifacts import PromptRead


class StoredOutput(msgspec.Struct, frozen=True):
    """One object of a job, and where it lies in the store."""

    kind: str
    number: int
    media_type: str
    size: int
    key: str
    seed: int | None = None
    read: bytes | None = None  # JSON of a `PromptRead`


def read_json(read: PromptRead | None) -> bytes | None:
    """As it is kept in a row."""
    return None if read is None else msgspec.json.encode(read)


def put_outputs(connection: Connection, job: str, made: Sequence[StoredOutput]) -> None:
    """Replace outputs of the same kind and number: an earlier attempt may have told them."""
    for output in made:
        same = (outputs.c.job == job, outputs.c.kind == output.kind, outputs.c.number == output.number)
        connection.execute(delete(outputs).where(*same))
        connection.execute(insert(outputs).values(job=job, **msgspec.structs.asdict(output)))
