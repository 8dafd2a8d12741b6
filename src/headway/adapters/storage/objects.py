"""The object store: one way to put, get and delete, for a folder and for S3. There is no fallback from one to another.

A put is atomic in both: a reader sees the whole object or none, and a process that dies leaves none.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from headway.adapters.storage.keys import is_intact
from headway.adapters.storage.settings import StorageSettings
from headway.adapters.telemetry.outages import Outage
from headway.core.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Config

log = logging.getLogger(__name__)

_PROBE: Final = "probe"
_LIST_CHUNK: Final = 500


class DamagedObject(Exception):
    """What lies under a key is not what was put there: a disk's fault, or a machine that lost its power."""


class ObjectStore:
    """Safe to use from one event loop; no call blocks it."""

    def __init__(self, settings: StorageSettings, folder: Path) -> None:
        """`folder`: where `settings.url` is empty. Raises ConfigError for what cannot be."""
        url = settings.url or str(folder)
        self.name = url
        self.outage = Outage(f"the object store {url}", log)
        self._store = _open(url, settings)

    async def check(self) -> None:
        """Write, read and delete a probe. Raises ConfigError with the store's reason."""
        try:
            await obstore.put_async(self._store, _PROBE, b"headway")
            found = await (await obstore.get_async(self._store, _PROBE)).bytes_async()
            await obstore.delete_async(self._store, _PROBE)
        except (BaseError, OSError) as error:
            raise ConfigError(f"storage.url = {self.name} cannot be used: {_first_line(error)}") from error
        if bytes(found) != b"headway":
            raise ConfigError(f"storage.url = {self.name} gives back something else than was put there")

    async def put(self, key: str, body: bytes) -> None:
        """Store an object, replacing one of this key. Raises CapacityError when the store does not take it."""
        try:
            await obstore.put_async(self._store, key, body)
        except (BaseError, OSError) as error:
            raise self._away(error) from error
        self.outage.answered()

    async def get(self, key: str) -> bytes | None:
        """The object; None where there is none. Raises CapacityError when the store does not answer, DamagedObject for
        a body that its sealed key was not made for."""
        try:
            found = bytes(await (await obstore.get_async(self._store, key)).bytes_async())
        except FileNotFoundError:
            found = None
        except (BaseError, OSError) as error:
            raise self._away(error) from error
        self.outage.answered()
        if found is not None and not is_intact(key, found):
            raise DamagedObject(f"{key} is damaged: these {len(found)} bytes were not stored there")
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error. Raises CapacityError."""
        for key in keys:
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise self._away(error) from error

    async def list(self, prefix: str) -> list[str]:
        """Keys below `prefix/`, in order. Raises CapacityError."""
        keys: list[str] = []
        try:
            async for chunk in obstore.list(self._store, f"{prefix}/", chunk_size=_LIST_CHUNK):
                keys += [entry["path"] for entry in chunk]
        except (BaseError, OSError) as error:
            raise self._away(error) from error
        return sorted(keys)

    async def delete_below(self, prefix: str) -> None:
        """Delete everything of a job. Raises CapacityError."""
        await self.delete(await self.list(prefix))

    async def look(self) -> None:
        """Find out whether it answers; one that is away must take an object again. Raises CapacityError."""
        if self.outage.is_on:
            await self.put(_PROBE, b"headway")
            await self.delete([_PROBE])
        else:
            await self.get(_PROBE)

    def _away(self, error: Exception) -> CapacityError:
        self.outage.failed(_first_line(error))
        return CapacityError(
            "The object store does not take part; try again.",
            status=503,
            code="no_object_store",
            retry_after_ms=1000,
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _open(url: str, settings: StorageSettings) -> LocalStore | S3Store:
    scheme, sign, rest = url.partition("://")
    if not sign or scheme == "file":
        if settings.endpoint is not None or settings.region is not None:
            raise ConfigError(f"storage.endpoint and storage.region are for s3://; storage.url is the folder {url}")
        try:
            return LocalStore(rest if sign else url, mkdir=True, automatic_cleanup=True)
        except (BaseError, OSError, ValueError) as error:
            raise ConfigError(f"storage.url = {url} cannot be made: {_first_line(error)}") from error
    if scheme != "s3":
        raise ConfigError(f"storage.url = {scheme}://...: a folder or s3://BUCKET/PREFIX is supported")
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise ConfigError(f"storage.url = {url} names no bucket; write s3://BUCKET/PREFIX")
    try:
        place: S3Config = {}  # what is left out comes from the environment
        if settings.endpoint is not None:
            place["endpoint"] = settings.endpoint
        if settings.region is not None:
            place["region"] = settings.region
        return S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            config=place,
            client_options={"allow_http": settings.allow_http, "timeout": "60s"},
            retry_config={"max_retries": 3},
        )
    except (BaseError, OSError, ValueError) as error:
        raise ConfigError(f"storage.url = {url}: {_first_line(error)}") from error
