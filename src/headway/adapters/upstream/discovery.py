"""Upstreams from a file that may change at run time: looked at by its time and size, checked as a whole or kept out."""

import tomllib
from pathlib import Path
from typing import Final

import msgspec

from headway.adapters.upstream.settings import UpstreamSettings, check_upstreams
from headway.core.errors import ConfigError

BYTES_MAX: Final = 4 << 20
_KEY: Final = "upstreams"


class UpstreamFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file: a list `upstreams`, as in the configuration."""

    upstreams: tuple[UpstreamSettings, ...]


def read_upstreams(path: Path) -> tuple[UpstreamSettings, ...]:
    """Read a TOML or (by its suffix) JSON file. Raises ConfigError with what is wrong in it."""
    try:
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(raw) > BYTES_MAX:
        raise ConfigError(f"{path} is larger than {BYTES_MAX} bytes")
    try:
        if path.suffix == ".json":
            found = msgspec.json.decode(raw, type=UpstreamFile)
        else:
            found = msgspec.convert(tomllib.loads(raw.decode("utf-8")), UpstreamFile)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        check_upstreams(found.upstreams, _KEY)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return found.upstreams


class WatchedFile:
    """Tells when the file has changed. What cannot be read or is wrong changes nothing, and is told once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None  # why the file as it is now is not in use
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> tuple[UpstreamSettings, ...] | None:
        """The upstreams of a file that was written since the last call. Raises ConfigError once per broken version."""
        try:
            status = self.path.stat()
        except OSError as error:
            self._seen = None
            self._tell(f"{self.path} cannot be read: {error.strerror or error}")
            return None
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            found = read_upstreams(self.path)
        except ConfigError as error:
            self._tell(str(error))
            return None
        self.error = None
        return found

    def _tell(self, error: str) -> None:
        if error != self.error:
            self.error = error
            raise ConfigError(error)
