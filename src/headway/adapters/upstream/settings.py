"""What an operator says of one upstream server, and whether it can work."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from headway.adapters.upstream.pool import PoolSettings
from headway.adapters.upstream.scrape import Kind
from headway.core.errors import ConfigError

Authorization = Literal["none", "key", "forward"]
Positive = Annotated[float, Meta(gt=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{1,4096}")


class WatchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it is watched. Every interval is varied by a tenth, so that many gateways do not ask at once."""

    health_path: str = "/health"  # any answer below 500 counts as alive
    health_interval_s: Positive = 2.0  # between two checks
    metrics_path: str = "/metrics"  # asked where the kind has metrics
    scrape_interval_s: Positive = 1.0  # between two scrapes
    models_interval_s: Positive = 30.0  # between two looks at /v1/models
    timeout_s: Positive = 5.0  # of one check, scrape or look


class UpstreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An OpenAI-compatible server to which requests are relayed. It is the replica `up-NAME`."""

    name: Name  # letters, digits, `_`, `.` and `-`; each once
    url: str  # `http://HOST:PORT` or https, with the path before `/v1` if it has one
    kind: Kind = "openai"  # whose metrics it has; openai: none that are known, only own counts
    models: dict[Name, Name] = {}  # what clients call a model = what it calls it; empty: all of its /v1/models
    authorization: Authorization = "none"  # it gets no credentials, a key of ours, or the client's own
    api_key_env: str | None = None  # environment variable with the key
    api_key_file: str | None = None  # file with the key
    host: str = ""  # machine it runs on, for the topology penalty
    max_tokens_default: PositiveInt = 1024  # output to plan with where a client sets no limit
    bytes_per_token: Annotated[float, Meta(ge=0.25, le=64)] = 4.0  # of a conversation, until answers taught better
    connection: PoolSettings = PoolSettings()
    watch: WatchSettings = WatchSettings()


class Place(msgspec.Struct, frozen=True):
    """Where a server listens."""

    host: str
    port: int
    base: str  # path before `/v1`
    is_tls: bool


def place_of(url: str) -> Place:
    """Take a URL apart. Raises ConfigError."""
    example = "write http://HOST:PORT"
    if not _VISIBLE.fullmatch(url):
        raise ConfigError(f"{url!r} has characters that a URL must escape; {example}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}; {example}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no http or https URL; {example}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a URL holds no credentials; use authorization = 'key' with api_key_env or api_key_file")
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r} has a query or a fragment; {example}")
    if port == 0:
        raise ConfigError(f"{url!r} has port 0; {example}")
    base = parts.path.rstrip("/")
    if base.endswith("/v1"):
        raise ConfigError(f"{url!r} ends with /v1, which is added to it; leave it out")
    return Place(parts.hostname, port or (443 if parts.scheme == "https" else 80), base, parts.scheme == "https")


def check_upstreams(upstreams: Sequence[UpstreamSettings], key: str = "upstreams") -> None:
    """Raise ConfigError for what cannot work. Keys are not read: a secret may be there only when it is needed."""
    first: dict[str, int] = {}
    for number, upstream in enumerate(upstreams):
        at = f"{key}[{number}]"
        if not _NAME.fullmatch(upstream.name):
            raise ConfigError(f"{at}.name = {upstream.name!r}: use letters, digits, `_`, `.` and `-`, at most 64")
        if upstream.name in first:
            raise ConfigError(f"{key}[{first[upstream.name]}].name and {at}.name are both {upstream.name!r}")
        first[upstream.name] = number
        try:
            place_of(upstream.url)
        except ConfigError as error:
            raise ConfigError(f"{at}.url: {error}") from None
        _check_key(upstream, at)
        for name, path in (("health_path", upstream.watch.health_path), ("metrics_path", upstream.watch.metrics_path)):
            if not re.fullmatch(r"/[\x21-\x7e]*", path):
                raise ConfigError(f"{at}.watch.{name} = {path!r}: a path begins with a slash and has no blanks")


def _check_key(upstream: UpstreamSettings, at: str) -> None:
    named = [name for name in ("api_key_env", "api_key_file") if getattr(upstream, name) is not None]
    if upstream.authorization == "key" and not named:
        raise ConfigError(f"{at}.authorization = 'key' needs {at}.api_key_env or {at}.api_key_file")
    if len(named) > 1:
        raise ConfigError(f"{at}.api_key_env and {at}.api_key_file are both given; keep one")
    if named and upstream.authorization != "key":
        raise ConfigError(f"{at}.{named[0]} is without use while {at}.authorization = {upstream.authorization!r}")


def credentials(upstream: UpstreamSettings, environment: Mapping[str, str] = os.environ) -> str | None:
    """The `authorization` header that it gets from us, None for none. Raises ConfigError, without the key."""
    if upstream.authorization != "key":
        return None
    if upstream.api_key_env is not None:
        source = f"environment variable {upstream.api_key_env}"
        key = environment.get(upstream.api_key_env, "")
    else:
        source = f"file {upstream.api_key_file}"
        try:
            key = Path(upstream.api_key_file or "").expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"upstream {upstream.name}: {source} cannot be read: {type(error).__name__}") from None
    if not _VISIBLE.fullmatch(key.strip()):
        raise ConfigError(f"upstream {upstream.name}: {source} holds no key")
    return f"Bearer {key.strip()}"
