"""Keys of objects: per tenant, then per job, and nothing in them comes from a client unchecked."""

import hashlib
import re
import zlib
from typing import Final

from headway.core.errors import RequestError

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def job_prefix(tenant: str, job: str) -> str:
    """Where everything of a job lies. Raises RequestError 404 for an id that no job can have."""
    if not _PLAIN.fullmatch(job):
        raise RequestError(
            f"job {job[:80]!r}: an id has 1 to 64 letters, digits, _ and -", status=404, code="not_found"
        )
    return f"{_tenant(tenant)}/{job}"


def object_key(tenant: str, job: str, attempt: int, name: str) -> str:
    """One object of one attempt: an attempt that was given up overwrites nothing of the one after it."""
    return f"{job_prefix(tenant, job)}/{attempt}/{name}"


def sealed(key: str, body: bytes) -> str:
    """The key of an object that must come back as it was put: with the checksum of its body."""
    return f"{key}.{zlib.crc32(body):08x}"


def is_intact(key: str, body: bytes) -> bool:
    """False where the key was sealed for another body. One that was not sealed tells nothing."""
    unsealed, dot, _ = key.rpartition(".")
    return not dot or "/" not in unsealed or sealed(unsealed, body) == key


def _tenant(name: str) -> str:
    """Names of tenants are the operator's, who may use any character. `~` marks those that are hashed."""
    return name if _PLAIN.fullmatch(name) else f"~{hashlib.sha256(name.encode()).hexdigest()[:40]}"
